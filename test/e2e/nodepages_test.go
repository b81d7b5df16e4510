package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// The node serves the files of its host's /var/log, and its own lines of the process's log as those of a
// kubelet.
func TestNodeLogs(t *testing.T) {
	parallel(t)
	read := func(p string) string {
		t.Helper()
		data, err := nodeAPI(t.Context(), p)
		if err != nil {
			t.Errorf("%s: %v", p, err)
		}
		return string(data)
	}
	// Only some directories below /var/log are the lab host's own.
	const dir = "containers/"
	name := "e2e-" + strings.ToLower(rand.Text()) + ".log"
	at := filepath.Join(lab.Host(host).Root, "var/log", dir, name)
	testutil.Must(t, os.WriteFile(at, []byte("a line of the host\n"), 0o644))
	t.Cleanup(func() { os.Remove(at) })
	contains(t, "the directories", read("logs/"), dir, "pods/")
	contains(t, "the list of files", read("logs/"+dir), name)
	equal(t, "the file", read("logs/"+dir+name), "a line of the host\n")
	equal(t, "the file, by a query", read("logs/?query=/"+dir+name), "a line of the host\n")
	if data, err := nodeAPI(t.Context(), "logs/no-such-file"); err == nil {
		t.Errorf("a file that does not exist: %q", data)
	}

	ns := namespace(t)
	create(t, ns, brief("seen", `containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]`))
	ready(t, ns, "seen")
	until(t, "the node's own lines", func(ctx context.Context) error {
		data, err := nodeAPI(ctx, "logs/?query=kubelet")
		if err == nil && !strings.Contains(string(data), " kubelet[") {
			err = fmt.Errorf("it has %q", data)
		}
		return err
	})
}

// Each of two nodes of one process shows its own lines, and not those of the other.
func TestNodeLogsOfTwoNodes(t *testing.T) {
	onlyLocal(t, "its hosts are always remote")
	parallel(t)
	p := newPooled(t, "host1", "host2")
	const query = "enableSystemLogQuery: true"
	p.edit(p.host("host1", "maxPods: 20", query), p.host("host2", "maxPods: 20", query))
	testutil.Must(t, p.bowline.Start())
	t.Cleanup(p.bowline.Kill)
	p.ready("host1", 20)
	p.ready("host2", 20)
	for node, other := range map[string]string{"host1": "host2", "host2": "host1"} {
		data, err := p.lab.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").
			Suffix("logs/").Param("query", "kubelet").Do(t.Context()).Raw()
		testutil.Must(t, err)
		contains(t, "the lines of "+node, string(data), `host="`+node+`"`)
		if strings.Contains(string(data), `host="`+other+`"`) {
			t.Errorf("%s shows lines of %s: %s", node, other, data)
		}
	}
}

// A checkpoint of a running container succeeds, or the answer has the runtime's own refusal.
func TestNodeCheckpoint(t *testing.T) {
	parallel(t)
	ns := namespace(t)
	create(t, ns, brief("kept", `containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]`))
	ready(t, ns, "kept")
	client, token := portClient(t, nil), caller(t, ns, "checkpoint")
	post := func(container string) (int, string) {
		t.Helper()
		return reply(t, client, http.MethodPost, "https://"+nodeAddress(t)+"/checkpoint/"+ns+"/kept/"+container, token)
	}
	until(t, "the caller's rights are known", func(context.Context) error {
		if code, text := post("none"); code == http.StatusForbidden {
			return errors.New(text)
		}
		return nil
	})
	switch code, text := post("main"); code {
	case http.StatusOK:
		contains(t, "the answer", text, `"items"`, "checkpoint-kept_"+ns+"-main-")
	case http.StatusInternalServerError:
		contains(t, "the runtime's refusal", text, "checkpoint")
	default:
		t.Errorf("code %d: %s", code, text)
	}
	if code, text := post("none"); code != http.StatusNotFound {
		t.Errorf("a container that does not exist: %d %s", code, text)
	}
	ready(t, ns, "kept")
}

// /statusz and /flagz show the process as a kubelet shows itself.
func TestNodeZPages(t *testing.T) {
	parallel(t)
	base, client := "https://"+nodeAddress(t), portClient(t, &lab.Status.Cluster.KubeletClient)
	contains(t, "/statusz", statusz(t, base), "kubelet statusz", "Started: ", "Up: ", "Binary version: "+getNode(t, lab).Status.NodeInfo.KubeletVersion, "/logs/")
	contains(t, "/flagz", get(t, t.Context(), client, base+"/flagz", "", http.StatusOK), "kubelet flagz", "config=")
}
