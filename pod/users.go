package pod

import (
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// HasUserNamespace reports whether the pod's spec asks for a user namespace: hostUsers: false.
func HasUserNamespace(p *v1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }

// IDRange is a range of Length IDs of the host that begins at HostID. A user namespace maps it to the
// IDs from 0 on.
type IDRange struct{ HostID, Length uint32 }

// noUsers is AnnotationUsers of a sandbox without a user namespace.
const noUsers = "host"

// String returns the value of AnnotationUsers: HostID:Length, or host for nil.
func (r *IDRange) String() string {
	if r == nil {
		return noUsers
	}
	return fmt.Sprintf("%d:%d", r.HostID, r.Length)
}

// ParseUsers parses AnnotationUsers. The range is nil if the sandbox has no user namespace; ok is
// false if the value has neither form.
func ParseUsers(value string) (r *IDRange, ok bool) {
	if value == noUsers {
		return nil, true
	}
	host, length, _ := strings.Cut(value, ":")
	first, errFirst := strconv.ParseUint(host, 10, 32)
	n, errLength := strconv.ParseUint(length, 10, 32)
	if errFirst != nil || errLength != nil || n == 0 || first+n > 1<<32 {
		return nil, false
	}
	return &IDRange{HostID: uint32(first), Length: uint32(n)}, true
}
