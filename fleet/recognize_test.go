package fleet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestOtherMachineGetsNothing: a machine that is not recognized, locally or over SSH, is asked only
// for its identity: no runtime call, no file, and no request about it to the API server. It is
// recognized by its machine-id and the link's host key.
func TestOtherMachineGetsNothing(t *testing.T) {
	here, err := local.New(local.Config{Name: "here"})
	testutil.Must(t, err)
	facts, err := here.Facts(t.Context())
	testutil.Must(t, err)
	server, rt := sshtest.Run(t), fake.Run(t, fake.Config{})
	pin, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	testutil.Must(t, err)
	for name, c := range map[string]struct {
		endpoint, hostKey, user string
		login                   config.SSH
	}{
		"near": {endpoint: "unix://" + rt.Socket},
		"far":  {server.URL(rt.Socket), ssh.FingerprintSHA256(pin), "root", config.SSH{IdentityFile: server.KeyFile, HostKeys: []string{server.HostKey}}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			cfg := &config.Host{
				Name: "box", NodeName: "box", HostObject: "box", Endpoint: c.endpoint, SSH: c.login, RootDirectory: root,
				// A request to the API server would fail with another error.
				Kubeconfig: filepath.Join(root, "none"),
			}
			other := &hosts.OtherMachineError{Host: "box"}
			var asked []v1alpha1.MachineStatus
			d := newDrivers(1)
			d.recognize = func(_ context.Context, name string, m v1alpha1.MachineStatus) error {
				if name != "box" {
					t.Errorf("asked about %q", name)
				}
				asked = append(asked, m)
				return other
			}
			if err := d.Manage(t.Context(), cfg, nil); !errors.Is(err, other) {
				t.Fatalf("it ended with: %v", err)
			}
			want := hosts.Machine(facts.MachineID, c.hostKey)
			want.User, want.Socket = c.user, rt.Socket
			if len(asked) != 1 || asked[0] != want {
				t.Errorf("asked about %+v; want %+v", asked, want)
			}

			// A release does not empty it either, and does not report the node's own machine as
			// empty.
			client := kubernetesfake.NewClientset(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "ours"}})
			err := releaseMachine(t.Context(), cfg, client, nil, func(_ context.Context, m v1alpha1.MachineStatus) error { asked = append(asked, m); return other })
			if !errors.Is(err, other) || len(asked) != 2 || asked[1] != want {
				t.Errorf("its release ended with %v, and asked about %+v", err, asked)
			}

			for _, method := range []string{"Version", "Status", "ListPodSandbox", "ListContainers", "UpdateRuntimeConfig"} {
				if n := rt.Calls(method); n != 0 {
					t.Errorf("%s was called %d times", method, n)
				}
			}
			if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
				t.Errorf("in its root directory there are %v: %v", left, err)
			}
		})
	}
}
