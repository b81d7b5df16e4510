package labtest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Dir makes a directory for the files of a test, which every user may read. Its path is short,
// because sockets are below it. It goes with the test, unless keep is set and the test fails.
func Dir(t *testing.T, name string, keep bool) string {
	t.Helper()
	dir, err := os.MkdirTemp("", name)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	testutil.Must(t, err)
	t.Cleanup(func() {
		if keep && t.Failed() {
			t.Logf("the logs are in %s", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// StartFor is Start for a test, at whose end the lab is taken down.
func StartFor(t *testing.T, dir string, hosts int, flags ...string) *Lab {
	t.Helper()
	l, err := Start(t.Context(), dir, hosts, flags...)
	testutil.Must(t, err)
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Number reads an environment variable that must be at least least; unset, it is otherwise.
func Number(t *testing.T, variable string, otherwise, least uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < least {
		t.Fatalf("%s=%q: a number, at least %d", variable, text, least)
	}
	return n
}

// Seed reads the seed of a test from an environment variable, or takes a new one, and logs it.
func Seed(t *testing.T, variable string) uint64 {
	t.Helper()
	seed := Number(t, variable, uint64(time.Now().UnixNano()), 0)
	t.Logf("%s=%d", variable, seed)
	return seed
}

// Namespace makes a namespace, or takes the one that exists, and waits for the objects that pods
// need in it. A name that ends with a dash gets a suffix.
func Namespace(ctx context.Context, client kubernetes.Interface, name string, timeout time.Duration) (string, error) {
	core := client.CoreV1()
	ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if strings.HasSuffix(name, "-") {
		ns.ObjectMeta = metav1.ObjectMeta{GenerateName: name}
	}
	made, err := core.Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	switch {
	case err == nil:
		name = made.Name
	case !apierrors.IsAlreadyExists(err):
		return "", err
	}
	return name, Until(ctx, timeout, "the service account and the root certificate of "+name, func(ctx context.Context) error {
		if _, err := core.ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		_, err := core.ConfigMaps(name).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
}

// Empty removes the cluster's own pods.
func (l *Lab) Empty(ctx context.Context) error {
	out, err := l.Kubectl(ctx, "-n", "kube-system", "scale", "deployment", "--all", "--replicas=0")
	if err != nil || out.Code != 0 {
		return fmt.Errorf("remove the cluster's own pods: %w %s", err, out.Stderr)
	}
	return nil
}
