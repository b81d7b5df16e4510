package link_test

import (
	hostssh "github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// Link implements the Transport that Host needs.
var _ hostssh.Transport = (*link.Link)(nil)
