package link_test

import (
	hostssh "github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// What Host needs, a Link has.
var _ hostssh.Transport = (*link.Link)(nil)
