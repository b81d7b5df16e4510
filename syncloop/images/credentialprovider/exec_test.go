package credentialprovider

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialapi "k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

const (
	protocolV1 = "credentialprovider.kubelet.k8s.io/v1"
	good       = `{"apiVersion":"` + protocolV1 + `","kind":"CredentialProviderResponse","cacheKeyType":"Image","cacheDuration":"5m","auth":{"r.example":{"username":"ann","password":"secret-1"}}}`
	token      = "eyJhbGciOiJSUzI1NiJ9.payload.signature"
)

// program makes a Program of a shell script.
func program(t *testing.T, script string) Program {
	t.Helper()
	dir := place(t, map[string]string{"bin/helper": "#!/bin/sh\n" + script})
	t.Setenv("WHERE", dir)
	return Program{Path: dir + "/bin/helper", Config: kubeletconfig.CredentialProvider{Name: "helper", APIVersion: protocolV1}}
}

func TestProtocol(t *testing.T) {
	p := program(t, `cat >"$WHERE/request"; echo "$OURS $THEIRS $*" >"$WHERE/call"; printf %s "$ANSWER"`)
	t.Setenv("OURS", "ours")
	t.Setenv("THEIRS", "ours")
	p.Config.Args = []string{"--of", "two words"}
	p.Config.Env = []kubeletconfig.ExecEnvVar{{Name: "THEIRS", Value: "theirs"}, {Name: "ANSWER", Value: good}}
	response, err := p.run(t.Context(), question{image: "r.example/app", token: token, annotations: map[string]string{"k": "v"}})
	testutil.Must(t, err)
	if diff := cmp.Diff(map[string]credentialapi.AuthConfig{"r.example": {Username: "ann", Password: "secret-1"}}, response.Auth); diff != "" {
		t.Error(diff)
	}
	if response.CacheKeyType != "Image" || response.CacheDuration.Duration != 5*time.Minute {
		t.Errorf("answered %+v", response)
	}
	read := func(name string) string {
		data := testutil.ReadFile(t, os.Getenv("WHERE")+"/"+name)
		return strings.TrimSpace(string(data))
	}
	var request map[string]any
	testutil.Must(t, json.Unmarshal([]byte(read("request")), &request))
	if diff := cmp.Diff(map[string]any{"apiVersion": protocolV1, "kind": "CredentialProviderRequest", "image": "r.example/app",
		"serviceAccountToken": token, "serviceAccountAnnotations": map[string]any{"k": "v"}}, request); diff != "" {
		t.Error(diff)
	}
	if got := read("call"); got != "ours theirs --of two words" {
		t.Errorf("the program was called with %q", got)
	}
}

func TestOlderProtocols(t *testing.T) {
	for _, version := range versions[1:] {
		p := program(t, `cat >"$WHERE/request"; printf %s "$ANSWER"`)
		p.Config.APIVersion = version
		t.Setenv("ANSWER", strings.Replace(good, protocolV1, version, 1))
		response, err := p.run(t.Context(), question{image: "r.example/app"})
		if err != nil || response.Auth["r.example"].Username != "ann" {
			t.Errorf("%s: %+v, %v", version, response, err)
		}
		data, _ := os.ReadFile(os.Getenv("WHERE") + "/request")
		if want := `{"kind":"CredentialProviderRequest","apiVersion":"` + version + `","image":"r.example/app"}`; strings.TrimSpace(string(data)) != want {
			t.Errorf("asked by %s, want %s", data, want)
		}
	}
}

// Errors contain nothing of the program's output, which may be a secret.
func TestFailures(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"exit":             {`echo secret-1; echo "no metadata service" >&2; exit 3`, "credential provider helper failed for image r.example/app: exit status 3\nrun it with such a request"},
		"token shown":      {`echo "cannot use ` + token + `" >&2; exit 1`, "exit status 1\nrun"},
		"secret shown":     {`echo "cannot use secret-1" >&2; exit 1`, "exit status 1\nrun"},
		"much":             {`head -c 3000000 /dev/zero`, "answered with more than 1048576 bytes"},
		"nothing":          {``, "its answer is not JSON"},
		"words":            {`echo secret-1`, "its answer is not JSON"},
		"other version":    {`printf %s "$OLD"`, `the apiVersion "credentialprovider.kubelet.k8s.io/v1beta1" and not "credentialprovider.kubelet.k8s.io/v1"`},
		"other kind":       {`echo '{"apiVersion":"` + protocolV1 + `","kind":"CredentialProviderRequest","image":"secret-1"}'`, "its answer is not a CredentialProviderResponse"},
		"unknown field":    {`echo '{"apiVersion":"` + protocolV1 + `","kind":"CredentialProviderResponse","secret-1":"a"}'`, "its answer is not a CredentialProviderResponse of that version"},
		"program is there": {`exec /nowhere`, "exit status 127"},
	} {
		t.Run(name, func(t *testing.T) {
			p := program(t, c.script)
			t.Setenv("OLD", strings.Replace(good, protocolV1, versions[2], 1))
			_, err := p.run(t.Context(), question{image: "r.example/app", token: token})
			if err == nil || !strings.Contains(err.Error()+"\n"+hint.Of(err), c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "secret-1") || strings.Contains(err.Error(), token) || strings.Contains(err.Error(), "no metadata service") {
				t.Errorf("the error shows what the program said: %v", err)
			}
		})
	}
}

// A program that does not answer is killed, with its child processes.
func TestNoAnswer(t *testing.T) {
	p := program(t, `echo waiting >&2; mkfifo "$WHERE/pipe"; (exec cat "$WHERE/pipe"; :) & cat "$WHERE/pipe"`)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := p.run(ctx, question{image: "r.example/app"})
	if err == nil || !strings.Contains(err.Error(), "did not answer for image r.example/app within 1m0s") {
		t.Errorf("error %v", err)
	}
	// If no process has the pipe open any more, a non-blocking open for writing fails.
	f, err := os.OpenFile(os.Getenv("WHERE")+"/pipe", os.O_WRONLY|0x800, 0)
	if err == nil {
		_ = f.Close()
		t.Error("what the program began still runs")
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := p.run(ctx, question{image: "r.example/app"}); err == nil || strings.Contains(err.Error(), "helper") {
		t.Errorf("a call that was given up has the error %v", err)
	}
}

// FuzzDecode: any output is either an answer of the requested version, or an error that contains
// nothing of it.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(strings.Replace(good, "auth", "Auth", 1)))
	f.Add([]byte(`{"apiVersion":"` + protocolV1 + `","kind":"CredentialProviderResponse","auth":{"a":null,"b":{}}}`))
	f.Add([]byte(`{"apiVersion":"` + protocolV1 + `","kind":"List","items":[]}`))
	f.Add([]byte("kind: CredentialProviderResponse\napiVersion: " + protocolV1 + "\nauth: {a: {password: marker-marker}}\n"))
	f.Add([]byte(`{"apiVersion":1}`))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		response, err := decode(data, protocolV1)
		if (response == nil) == (err == nil) {
			t.Fatalf("%+v and %v", response, err)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("the error is long: %v", err)
		}
		if err != nil && strings.Contains(err.Error(), "marker-marker") && !strings.Contains(err.Error(), "apiVersion") {
			t.Errorf("the error shows the answer: %v", err)
		}
	})
}
