// The Gateway API: its CRDs, not its code.
module sandgate.dev/tests/cluster/gateway-api

go 1.26.0

require sigs.k8s.io/gateway-api v1.4.0
