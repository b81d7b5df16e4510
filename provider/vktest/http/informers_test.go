package http_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

type idle struct{ nodeutil.Provider }

func (idle) GetPods(context.Context) ([]*v1.Pod, error) { return nil, nil }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestNodeutilWatchesAllSecrets: nodeutil.NewNode watches every secret and configMap of the
// cluster, for each node; a node's own identity may not even do that. Bowline does not use it;
// vktest.TestEnvStaysAsWritten shows that provider requests none.
func TestNodeutilWatchesAllSecrets(t *testing.T) {
	path := os.Getenv("BOWLINE_LAB_KUBECONFIG")
	if path == "" {
		t.Skip("set BOWLINE_LAB_KUBECONFIG to an administrator's kubeconfig of a lab cluster")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	check(t, err)
	var mu sync.Mutex
	asked := map[string]bool{}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			asked[r.URL.Path] = true
			mu.Unlock()
			return next.RoundTrip(r)
		})
	})
	client, err := kubernetes.NewForConfig(cfg)
	check(t, err)
	name := "vk-" + rand.String(8)
	n, err := nodeutil.NewNode(name, func(nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
		return idle{}, nil, nil
	}, nodeutil.WithClient(client), func(c *nodeutil.NodeConfig) error { c.HTTPListenAddr = "127.0.0.1:0"; return nil })
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	defer func() {
		cancel()
		<-done
		_ = client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{})
		_ = client.CoordinationV1().Leases("kube-node-lease").Delete(context.Background(), name, metav1.DeleteOptions{})
	}()
	deadline := time.After(20 * time.Second)
	for {
		mu.Lock()
		all := asked["/api/v1/secrets"] && asked["/api/v1/configmaps"]
		var paths []string
		for p := range asked {
			paths = append(paths, p)
		}
		mu.Unlock()
		if all {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("asked only for %s; virtual-kubelet has fixed this", strings.Join(paths, " "))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
