package ssh_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestFactsAreThoseOfLocal: the two implementations say the same of one machine.
func TestFactsAreThoseOfLocal(t *testing.T) {
	remote := open(t, ssh.Config{})
	here, err := local.New(local.Config{Name: "local"})
	testutil.Must(t, err)
	defer here.Close()
	want, err := here.Facts(t.Context())
	testutil.Must(t, err)
	got, err := remote.Facts(t.Context())
	testutil.Must(t, err)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the facts over SSH differ (-local +ssh):\n%s", diff)
	}
}
