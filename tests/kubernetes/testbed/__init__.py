"""A Kubernetes control plane with fake GPU nodes and the training operators, built from source; see README.md."""
