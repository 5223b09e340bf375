"""Why a pod that wants a GPU or a MIG device waits: values in, findings out. Nothing here asks the API server."""
