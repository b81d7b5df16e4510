package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/version"
)

// hostAPI is the part of an API server that the host commands use.
type hostAPI struct {
	mu    sync.Mutex
	hosts map[string]*v1alpha1.Host
	asked []string
	// without means that the cluster does not have the Host resource.
	without bool
}

func (a *hostAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, r.Method+" "+r.URL.Path)
	answer := func(code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object)
	}
	missing := func() {
		answer(http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	}
	typed := func(h *v1alpha1.Host) *v1alpha1.Host {
		h.APIVersion, h.Kind = v1alpha1.GroupVersion.String(), "Host"
		return h
	}
	const all = "/apis/bowline.io/v1alpha1/hosts"
	name := strings.TrimPrefix(r.URL.Path, all+"/")
	body, _ := io.ReadAll(r.Body)
	switch {
	case a.without:
		missing()
	case r.URL.Path == all && r.Method == http.MethodGet:
		list := &v1alpha1.HostList{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "HostList"}}
		for _, h := range a.hosts {
			list.Items = append(list.Items, *typed(h))
		}
		answer(http.StatusOK, list)
	case r.URL.Path == all && r.Method == http.MethodPost:
		h := &v1alpha1.Host{}
		if err := json.Unmarshal(body, h); err != nil || h.Kind != "Host" {
			answer(http.StatusBadRequest, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusBadRequest, Message: string(body)})
			return
		}
		h.UID = "made"
		a.hosts[h.Name] = h
		answer(http.StatusCreated, typed(h))
	case strings.HasPrefix(r.URL.Path, all+"/"):
		h := a.hosts[name]
		if h == nil {
			missing()
			return
		}
		switch r.Method {
		case http.MethodPatch:
			_ = json.Unmarshal(body, h)
		case http.MethodDelete:
			delete(a.hosts, name)
		}
		answer(http.StatusOK, typed(h))
	case r.URL.Path == "/api/v1/nodes" && r.Method == http.MethodGet:
		answer(http.StatusOK, v1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}})
	default:
		missing()
	}
}

// serve starts the API server and returns the arguments that name it.
func (a *hostAPI) serve(t *testing.T) []string {
	t.Helper()
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	c := clientcmdapi.NewConfig()
	c.Clusters["here"] = &clientcmdapi.Cluster{Server: s.URL}
	c.Contexts["here"] = &clientcmdapi.Context{Cluster: "here"}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testutil.Must(t, clientcmd.WriteToFile(*c, file))
	return []string{"--kubeconfig", file, "--context", "here"}
}

// command runs the whole program and returns what it printed.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := rootCommand("bowline")
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetIn(strings.NewReader(""))
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestHostCommands(t *testing.T) {
	a := &hostAPI{hosts: map[string]*v1alpha1.Host{}}
	way := a.serve(t)
	with := func(args ...string) []string { return append(args, way...) }

	access := access{kubeconfig: way[1], context: way[3]}
	objects, _, err := access.clients()
	testutil.Must(t, err)
	var _ hostadmin.Hosts = (*hosts.Client)(nil)
	h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: "box-1"}}
	h.Spec.Endpoint = "unix:///run/c.sock"
	if made, err := objects.Create(t.Context(), h); err != nil || made.UID != "made" || made.Spec.Endpoint != h.Spec.Endpoint {
		t.Fatalf("%+v, %v", made, err)
	}

	out, err := command(t, with("host", "list")...)
	if err != nil || !strings.HasPrefix(out, "NAME    NODE   READY   LINK   RTT   PODS   REASON   AGE") || !strings.Contains(out, "\nbox-1   -      -") || strings.Contains(out, "c.sock") {
		t.Errorf("list: %q, %v", out, err)
	}
	if out, err = command(t, with("host", "list", "-o", "wide")...); err != nil || !strings.Contains(out, "   ENDPOINT") || !strings.Contains(out, "   unix:///run/c.sock") {
		t.Errorf("list -o wide: %q, %v", out, err)
	}
	var list v1alpha1.HostList
	out, err = command(t, with("host", "list", "-o", "json")...)
	if bad := json.Unmarshal([]byte(out), &list); bad != nil || err != nil || len(list.Items) != 1 || list.Items[0].Name != "box-1" {
		t.Errorf("list -o json: %q, %v", out, err)
	}
	var shown v1alpha1.HostList
	hostile := "left \u009b2J \u202egnp.exe\u2066 \x7f \U000e0041 größer 日本"
	a.hosts["box-1"].Status.LastError = hostile
	out, err = command(t, with("host", "list", "-o", "json")...)
	if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) || !strings.Contains(out, "größer 日本") {
		t.Errorf("list -o json prints what a terminal obeys: %q, %v", out, err)
	}
	if bad := json.Unmarshal([]byte(out), &shown); bad != nil || shown.Items[0].Status.LastError != hostile {
		t.Errorf("list -o json: the text is %q, %v", shown.Items[0].Status.LastError, bad)
	}
	out, err = command(t, with("top", "--once")...)
	if err != nil || !strings.HasPrefix(out, "HOST ") || !strings.Contains(out, "\nbox-1   -") || strings.Contains(out, "\x1b") {
		t.Errorf("top: %q, %v", out, err)
	}
	if _, err = command(t, with("host", "check", "box-1")...); err == nil || !strings.Contains(hint.Text(err), "Run there: bowline host check unix:///run/c.sock") {
		t.Errorf("check: %v", err)
	}
	out, err = command(t, with("host", "remove", "box-1", "--detach")...)
	if err != nil || !strings.Contains(out, "The Host box-1 and its node are gone.") {
		t.Errorf("remove: %q, %v", out, err)
	}
	if asked := strings.Join(a.asked, "\n"); !strings.Contains(asked, "PATCH /apis/bowline.io/v1alpha1/hosts/box-1\nDELETE /apis/bowline.io/v1alpha1/hosts/box-1") {
		t.Errorf("the API server was asked\n%s", asked)
	}
	if _, err = command(t, with("host", "remove", "box-1")...); err == nil || !strings.Contains(err.Error(), "the Host box-1 does not exist") {
		t.Errorf("remove again: %v", err)
	}
}

// Mistakes in the command line are reported before any request to the cluster.
func TestHostCommandsRefuse(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"host", "add", "box-1"}, "give --ssh"},
		{[]string{"host", "add", "--ssh", "root@h"}, "give NAME"},
		{[]string{"host", "add", "Box", "--ssh", "root@h"}, `NAME "Box"`},
		{[]string{"host", "add", "box-1", "--ssh", "h"}, "root@h"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "--label", "x"}, "KEY=VALUE"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "--taint", "x"}, "KEY=VALUE:EFFECT"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "--link-grace", "500ms"}, "--link-grace 500ms: at least 1s"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "--link-grace", "0"}, "--link-grace 0s: at least 1s"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "--key", none}, "--key"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "-i", none}, "--identity-file"},
		{[]string{"host", "add", "box-1", "--ssh", "root@h", "--kubeconfig", none}, "kubeconfig"},
		{[]string{"host", "list", "-o", "yaml"}, `--output "yaml": text or json or wide`},
		{[]string{"host", "remove"}, "give NAME"},
		{[]string{"host", "check", "box-1", "--proxy-jump", "x"}, "a Host object has its own"},
		{[]string{"top", "--interval", "1ms"}, "at least 1s"},
		{[]string{"version", "-o", "yaml"}, "text or json"},
	} {
		out, err := command(t, c.args...)
		if err == nil || !strings.Contains(err.Error()+"\n"+hint.Of(err), c.want) || out != "" {
			t.Errorf("%v: %q, %v", c.args, out, err)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := command(t, "version")
	if err != nil || !strings.HasPrefix(out, "bowline dev") || !strings.Contains(out, runtime.Version()) {
		t.Errorf("%q, %v", out, err)
	}
	var b version.Build
	out, err = command(t, "version", "-o", "json")
	if bad := json.Unmarshal([]byte(out), &b); bad != nil || err != nil || b.Version != "dev" || b.Go != runtime.Version() || b.Platform == "" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestPlugin(t *testing.T) {
	for argv0, want := range map[string]string{"bowline": "bowline", "/usr/local/bin/kubectl-bowline": "kubectl bowline", "bin/bowline": "bowline"} {
		if got := calledAs(argv0); got != want {
			t.Errorf("%s is %q", argv0, got)
		}
	}
	root := rootCommand("kubectl bowline")
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs([]string{"host", "add", "--help"})
	testutil.Must(t, root.Execute())
	for _, want := range []string{"\n  kubectl bowline host add NAME --ssh", "\n  kubectl bowline host add box-1 --ssh root@10.0.0.7\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help does not say %q:\n%s", want, out.String())
		}
	}
	if root.DisplayName() != "kubectl bowline" || rootCommand("bowline").DisplayName() != "bowline" {
		t.Error("it is called otherwise")
	}
}

// The user is asked only at a terminal; --yes answers for an absent one.
func TestPerson(t *testing.T) {
	var out bytes.Buffer
	if _, err := newPerson(strings.NewReader("y\n"), &out, false).Confirm(t.Context(), "Well?"); !errors.Is(err, hostadmin.ErrCannotAsk) {
		t.Errorf("a pipe was asked: %v", err)
	}
	if yes, err := newPerson(strings.NewReader(""), &out, true).Confirm(t.Context(), "Well?"); !yes || err != nil || out.String() != "Well? yes (--yes)\n" {
		t.Errorf("%v, %v: %q", yes, err, out.String())
	}
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false} {
		p := newPerson(strings.NewReader(""), &out, false)
		p.answers(strings.NewReader(answer))
		if yes, err := p.Confirm(t.Context(), "Well?"); yes != want || err != nil {
			t.Errorf("%q is %v, %v", answer, yes, err)
		}
	}
	if err := newPerson(strings.NewReader("y\n"), &out, false).agrees(t.Context(), "Well?", "set --yes"); err == nil || err.Error() != "set --yes" {
		t.Errorf("a pipe agreed: %v", err)
	}
	r, w := io.Pipe()
	defer w.Close()
	p := newPerson(r, &out, false)
	p.answers(r)
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := p.Confirm(ended, "Well?"); !errors.Is(err, context.Canceled) {
		t.Errorf("no one waits any more: %v", err)
	}
}
