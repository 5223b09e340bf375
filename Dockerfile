# syntax=docker/dockerfile:1

# The tag moves with Python's and Debian's security fixes. For builds that are the same every time, pin what it is today:
#   docker build --build-arg BASE=python:3.13-slim-trixie@sha256:... .
ARG BASE=python:3.13-slim-trixie

FROM ${BASE} AS build
WORKDIR /src
COPY deploy/image/requirements.lock deploy/image/build.lock ./
# Wheels only: nothing is compiled. kubernetes/aio is a second client, of 34 MiB, that nothing here imports.
RUN python -m venv --without-pip /opt/mig-manager \
 && pip --python /opt/mig-manager/bin/python install --no-cache-dir --no-compile \
      --require-hashes --only-binary :all: --requirement requirements.lock \
 && rm -rf /opt/mig-manager/lib/python3.*/site-packages/kubernetes/aio
RUN python -m venv --without-pip /opt/build \
 && pip --python /opt/build/bin/python install --no-cache-dir --no-compile \
      --require-hashes --only-binary :all: --requirement build.lock
COPY pyproject.toml README.md LICENSE ./
COPY mig_manager mig_manager
# The root directory is read-only on a node, so bytecode is made here, but for modules of which hardly one is imported.
RUN PYTHONPATH="$(echo /opt/build/lib/python3.*/site-packages)" \
    pip --python /opt/mig-manager/bin/python install --no-cache-dir --no-compile \
      --no-deps --no-index --no-build-isolation . \
 && /opt/mig-manager/bin/python -m compileall -q -x '/kubernetes/client/|/pygments/lexers/' \
      --invalidation-mode unchecked-hash /opt/mig-manager/lib

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="mig-manager" \
      org.opencontainers.image.description="Re-partitions the NVIDIA GPUs of a Kubernetes node when its label changes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/mig-manager /opt/mig-manager
# The container runtime of NVIDIA is to add no GPUs: the daemon finds them on the host, and lets them go after each change.
# nvidia-ctk, for CDI, is looked for where the GPU Operator's toolkit installs it, in the directory that is chrooted to.
ENV PATH=/opt/mig-manager/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/toolkit \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=void
ENTRYPOINT ["nvidia-mig-manager"]
