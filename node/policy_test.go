package node

import (
	"testing"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// The policy allows whatever the owner does not forbid, field by field.
func TestPolicyOfTheConfiguration(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		is   config.Policy
		want admit.Policy
	}{
		{config.Policy{}, admit.Policy{}},
		{config.Policy{AllowPrivileged: &yes, AllowHostPath: &yes, AllowHostNetwork: &yes, AllowNFS: &yes}, admit.Policy{}},
		{config.Policy{AllowPrivileged: &no}, admit.Policy{NoPrivileged: true}},
		{config.Policy{AllowHostPath: &no}, admit.Policy{NoHostPath: true}},
		{config.Policy{AllowHostNetwork: &no}, admit.Policy{NoHostNetwork: true}},
		{config.Policy{AllowNFS: &no}, admit.Policy{NoNFS: true}},
	} {
		if got := policy(&config.Host{Policy: c.is}); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}
