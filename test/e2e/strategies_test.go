package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/audit"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// Without a watch of their configMaps and secrets, pods start as soon as the objects that they name
// exist, and their volumes follow changes. Each strategy has its own node; the API server's log
// shows that neither node watched any.
func TestStrategiesWithoutWatch(t *testing.T) {
	onlyLocal(t, "requests to the API server are the same for a remote host")
	parallel(t)
	ctx := t.Context()
	own := ownLab(t, 2, "--audit")
	strategies := map[string]string{"host1": "Cache", "host2": "Get"}
	for node, strategy := range strategies {
		b := &labtest.Bowline{Lab: own, Host: node, Extra: []string{"configMapAndSecretChangeDetectionStrategy: " + strategy, "syncFrequency: 5s"}}
		testutil.Must(t, b.Start())
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s:\n%s", node, b.LogTail(4000))
			}
			b.Kill()
		})
	}
	core := own.Client.CoreV1()
	for node := range strategies {
		_, err := own.NodeReady(ctx, node, v1.ConditionTrue, 2*time.Minute)
		testutil.Must(t, err)
		p := manifest[v1.Pod](t, "default", fmt.Sprintf(`
metadata: {name: of-%[1]s}
spec:
  nodeName: %[1]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: $TOOLBOX
    command: [sleep, inf]
    env: [{name: KEY, valueFrom: {secretKeyRef: {name: key, key: key}}}]
    volumeMounts: [{name: page, mountPath: /page}]
  volumes: [{name: page, configMap: {name: page}}]
`, node))
		_, err = core.Pods("default").Create(ctx, p, metav1.CreateOptions{})
		testutil.Must(t, err)
	}
	waits := func(node, reason, what string) {
		t.Helper()
		_, err := own.Pod(ctx, "default", "of-"+node, patience, "it waits for "+what, func(p *v1.Pod) error {
			c := labtest.Container(p, "main")
			if c == nil || c.State.Waiting == nil || c.State.Waiting.Reason != reason || !strings.Contains(c.State.Waiting.Message, what) {
				return fmt.Errorf("its container: %+v", c)
			}
			return nil
		})
		testutil.Must(t, err)
	}
	for node := range strategies {
		waits(node, "ContainerCreating", `"page"`)
	}
	_, err := core.ConfigMaps("default").Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "page"}, Data: map[string]string{"index": "one"}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	for node := range strategies {
		waits(node, "CreateContainerConfigError", `secret "key" not found`)
	}
	_, err = core.Secrets("default").Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"key": "k1"}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	shows := func(node, want string) {
		t.Helper()
		testutil.Must(t, labtest.Until(ctx, 60*time.Second, node+" shows "+want, func(ctx context.Context) error {
			out, err := own.Kubectl(ctx, "exec", "of-"+node, "--", "sh", "-c", "cat /page/index; echo $KEY")
			if got := strings.Join(strings.Fields(out.Stdout), " "); err == nil && got != want {
				err = fmt.Errorf("%q %s", got, out.Stderr)
			}
			return err
		}))
	}
	for node := range strategies {
		shows(node, "onek1")
	}
	_, err = core.ConfigMaps("default").Patch(ctx, "page", types.MergePatchType, []byte(`{"data":{"index":"two"}}`), metav1.PatchOptions{})
	testutil.Must(t, err)
	for node := range strategies {
		shows(node, "twok1")
	}

	log, err := os.Open(own.Status.Cluster.AuditLog)
	testutil.Must(t, err)
	defer log.Close()
	events, err := audit.Read(log)
	testutil.Must(t, err)
	gets := map[string]int{}
	for _, e := range events {
		node, isNode := strings.CutPrefix(e.User.Username, "system:node:")
		if e.ObjectRef == nil || !isNode || e.ObjectRef.Resource != "configmaps" && e.ObjectRef.Resource != "secrets" {
			continue
		}
		if e.Verb != "get" {
			t.Errorf("%s: %s %s", node, e.Verb, e.RequestURI)
		}
		gets[node]++
	}
	for node, strategy := range strategies {
		if gets[node] < 5 {
			t.Errorf("%s: %d reads are in the log; there were five at least", strategy, gets[node])
		}
	}
	t.Logf("reads: %v of %v", gets, strategies)
}
