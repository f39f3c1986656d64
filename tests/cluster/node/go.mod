// The two programs of the test cluster that are its own.
module sandgate.dev/tests/cluster/node

go 1.26.0
