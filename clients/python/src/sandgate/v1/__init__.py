"""The messages of the contract, generated from `proto/sandgate/v1`."""
