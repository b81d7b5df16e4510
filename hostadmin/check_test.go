package hostadmin

import (
	"context"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// TestReach: a login that the user did not name is the user's own.
func TestReach(t *testing.T) {
	const raw, key = "ssh://root@10.0.0.7/run/c.sock", "SHA256:ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs"
	own := sshlogin.Login{Agent: "/agent", Keys: []string{"/home/me/.ssh/id_ed25519"}, KnownHosts: []string{"/home/me/.ssh/known_hosts"}}
	for name, c := range map[string]struct {
		reach      Reach
		keys       []string
		knownHosts []string
		agent      string
	}{
		"no flags":                  {Reach{}, own.Keys, own.KnownHosts, "/agent"},
		"a pinned key":              {Reach{SSH: endpoint.Options{HostKeys: []string{key}}}, own.Keys, nil, "/agent"},
		"a jump that is not pinned": {Reach{SSH: endpoint.Options{HostKeys: []string{key}, ProxyJump: "j@a"}}, own.Keys, own.KnownHosts, "/agent"},
		"an agent that was named":   {Reach{SSH: endpoint.Options{Credentials: endpoint.Credentials{AgentSocket: "/mine"}}, Given: []string{"--agent-socket"}}, nil, own.KnownHosts, "/mine"},
		"a known_hosts file":        {Reach{SSH: endpoint.Options{KnownHosts: []string{"/mine"}}}, own.Keys, []string{"/mine"}, "/agent"},
	} {
		c.reach.Own = func(context.Context) sshlogin.Login { return own }
		cfg, err := c.reach.Check(t.Context(), raw, "/root")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cfg.Socket != "/run/c.sock" || cfg.RootDir != "/root" || !slices.Equal(cfg.Target.IdentityFiles, c.keys) ||
			!slices.Equal(cfg.Target.KnownHosts, c.knownHosts) || c.reach.SSH.Credentials.AgentSocket != c.agent {
			t.Errorf("%s: %+v, agent %q", name, cfg.Target, c.reach.SSH.Credentials.AgentSocket)
		}
		for _, j := range cfg.Target.Jumps {
			if !slices.Equal(j.IdentityFiles, c.keys) {
				t.Errorf("%s: the jump gets the keys %v", name, j.IdentityFiles)
			}
		}
	}
	local := Reach{Own: func(context.Context) sshlogin.Login { t.Error("asked for a login"); return own }}
	if cfg, err := local.Check(t.Context(), "/run/c.sock", "/root"); err != nil || cfg.Target != nil || cfg.Endpoint != "unix:///run/c.sock" {
		t.Errorf("a local socket: %+v, %v", cfg, err)
	}
	local.Given = []string{"--host-key"}
	if _, err := local.Check(t.Context(), "/run/c.sock", "/root"); err == nil || !strings.Contains(err.Error(), "--host-key: only for ssh://") {
		t.Errorf("a local socket with --host-key: %v", err)
	}
}

// TestCheckOf: a Host's machine is reached with the Host's keys, and its own node is no failure.
func TestCheckOf(t *testing.T) {
	w := newWorld(t)
	_, err := w.client.CoreV1().Secrets("bowline").Create(t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "bowline", Name: "login"}, Data: map[string][]byte{
		v1.SSHAuthPrivateKey: []byte("the key"), connect.SecretPassphrase: []byte("the passphrase\n"),
	}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = w.client.CoreV1().Services("default").Create(t.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: types.UID("cluster")}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "box-1"}}
	h.Spec.Endpoint = "ssh://root@10.0.0.7/run/c.sock"
	h.Spec.CredentialsSecretRef = &v1alpha1.SecretRef{Name: "login"}
	h.Status.NodeName = "node-1"
	w.hosts.byName["box-1"] = h
	check := func() error {
		cfg, err := CheckOf(t.Context(), w.hosts, w.client, "bowline", "box-1", "/root")
		if err == nil && (cfg.RootDir != "/root" || cfg.Socket != "/run/c.sock" || cfg.Managed.NodeName != "node-1" || cfg.Managed.ClusterUID != "cluster" ||
			string(cfg.Target.Key) != "the key" || string(cfg.Target.Passphrase) != "the passphrase") {
			t.Errorf("%+v of %+v", cfg, cfg.Target)
		}
		return err
	}
	testutil.Must(t, check())
	h.Spec.CredentialsSecretRef.Name = "none"
	w.fails(check(), "read the key of the Host box-1")
	h.Spec.Endpoint = "unix:///run/c.sock"
	w.fails(check(), "is on Bowline's own machine")
	delete(w.hosts.byName, "box-1")
	w.fails(check(), "read the Host box-1")
}
