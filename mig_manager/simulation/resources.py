"""The kinds that the simulated API server serves."""

from __future__ import annotations

from collections.abc import Mapping

from mig_manager.simulation.objects import Object, Resource

NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False, "namespace", ("ns",))
NODES = Resource("", "v1", "nodes", "Node", False, "node", ("no",))
PODS = Resource("", "v1", "pods", "Pod", True, "pod", ("po",))
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", True, "configmap", ("cm",))
SECRETS = Resource("", "v1", "secrets", "Secret", True, "secret")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True, "serviceaccount", ("sa",))
EVENTS = Resource("", "v1", "events", "Event", True, "event", ("ev",))
NEW_EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True, "event", ("ev",))
"""The same objects as `EVENTS`, which is where they are stored."""
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True, "daemonset", ("ds",))
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True, "deployment", ("deploy",))
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True, "replicaset", ("rs",))
JOBS = Resource("batch", "v1", "jobs", "Job", True, "job")
CONTROLLER_REVISIONS = Resource(
    "apps", "v1", "controllerrevisions", "ControllerRevision", True, "controllerrevision"
)
POD_DISRUPTION_BUDGETS = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, "poddisruptionbudget", ("pdb",)
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True, "lease")
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True, "resourceclaim")
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True, "resourceclaimtemplate"
)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False, "resourceslice")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False, "deviceclass")
RUNTIME_CLASSES = Resource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False, "runtimeclass")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True, "role")
ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True, "rolebinding"
)
CLUSTER_ROLES = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False, "clusterrole"
)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io",
    "v1",
    "clusterrolebindings",
    "ClusterRoleBinding",
    False,
    "clusterrolebinding",
)
ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    False,
    "validatingadmissionpolicy",
)
ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
    "validatingadmissionpolicybinding",
)
"""Both are stored only: what is refused is up to the `admit` of the API server."""

RESOURCES: tuple[Resource, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    CONFIGMAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    EVENTS,
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    JOBS,
    CONTROLLER_REVISIONS,
    POD_DISRUPTION_BUDGETS,
    LEASES,
    NEW_EVENTS,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    DEVICE_CLASSES,
    RUNTIME_CLASSES,
    ROLES,
    ROLE_BINDINGS,
    CLUSTER_ROLES,
    CLUSTER_ROLE_BINDINGS,
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
)
"""Every kind with stored objects, in the order in which discovery shows them."""

REVIEWS: tuple[Resource, ...] = (
    Resource(
        "authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", False, "selfsubjectreview"
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
        False,
        "selfsubjectaccessreview",
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "subjectaccessreviews",
        "SubjectAccessReview",
        False,
        "subjectaccessreview",
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "selfsubjectrulesreviews",
        "SelfSubjectRulesReview",
        False,
        "selfsubjectrulesreview",
    ),
)
"""Kinds that are only created, answered at once, and never stored."""

SUBRESOURCES: Mapping[Resource, tuple[str, ...]] = {
    NAMESPACES: ("status",),
    NODES: ("status",),
    PODS: ("status", "log", "eviction"),
    SERVICE_ACCOUNTS: ("token",),
    DAEMON_SETS: ("status",),
    DEPLOYMENTS: ("status", "scale"),
    REPLICA_SETS: ("status", "scale"),
    JOBS: ("status",),
    POD_DISRUPTION_BUDGETS: ("status",),
    RESOURCE_CLAIMS: ("status",),
    ADMISSION_POLICIES: ("status",),
}

WITH_GENERATION = frozenset({DAEMON_SETS, DEPLOYMENTS, REPLICA_SETS, JOBS, POD_DISRUPTION_BUDGETS, PODS})
"""Kinds whose `metadata.generation` counts the changes of `spec`."""

_BY_PATH = {(each.group, each.version, each.plural): each for each in (*RESOURCES, *REVIEWS)}
_BY_KIND = {(each.api_version, each.kind): each for each in (*RESOURCES, *REVIEWS)}


def at_path(group: str, version: str, plural: str) -> Resource | None:
    """The kind under `/apis/<group>/<version>/<plural>` (`/api/v1/<plural>` for the empty group), or None."""
    return _BY_PATH.get((group, version, plural))


def of_object(obj: Object) -> Resource | None:
    """The kind that the object's `apiVersion` and `kind` name, or None."""
    return _BY_KIND.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
