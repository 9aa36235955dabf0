"""The same promises on a GPU: `make test-gpu`."""
