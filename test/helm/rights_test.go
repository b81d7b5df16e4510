package helm

import (
	"os"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/audit"
)

// tries is the user agent of requests that must be refused: the check of the log ignores it.
const tries = "bowline-test-tries"

// mayBeNoOtherNode: the account may act as the chart's nodes, and neither as any other node, nor
// read a Secret that no Host names.
func (c *cluster) mayBeNoOtherNode() {
	c.t.Helper()
	token, err := c.lab.Client.CoreV1().ServiceAccounts(namespace).CreateToken(c.t.Context(), "bowline", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	testutil.Must(c.t, err)
	account := rest.AnonymousClientConfig(c.lab.REST)
	account.BearerToken, account.UserAgent = token.Status.Token, tries
	as := func(user string, groups ...string) kubernetes.Interface {
		config := rest.CopyConfig(account)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
		client, err := kubernetes.NewForConfig(config)
		testutil.Must(c.t, err)
		return client
	}
	get := func(client kubernetes.Interface, node string) error {
		_, err := client.CoreV1().Nodes().Get(c.t.Context(), node, metav1.GetOptions{})
		return err
	}
	own := "system:node:" + first.name
	if err := get(as(own, "system:nodes"), first.name); err != nil {
		c.t.Errorf("it cannot be its own node: %v", err)
	}
	for _, other := range []kubernetes.Interface{as("system:node:"+localHost, "system:nodes"), as(own, "system:masters"), as("lab-admin", "system:masters"), as("system:kube-scheduler")} {
		if err := get(other, localHost); !apierrors.IsForbidden(err) {
			c.t.Errorf("the account can be someone else: %v", err)
		}
	}
	_, err = c.lab.Client.CoreV1().Secrets(namespace).Create(c.t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{})
	testutil.Must(c.t, err)
	if _, err := as("").CoreV1().Secrets(namespace).Get(c.t.Context(), "another", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		c.t.Errorf("the account reads a Secret that no Host names: %v", err)
	}
}

// logIsClean checks all requests of the chart's accounts and its nodes.
func (c *cluster) logIsClean() {
	c.t.Helper()
	log, err := os.Open(c.lab.Status.Cluster.AuditLog)
	testutil.Must(c.t, err)
	defer log.Close()
	events, err := audit.Read(log)
	testutil.Must(c.t, err)
	allowed := audit.Cluster{
		Namespace: namespace, Account: "bowline", Hooks: "bowline-hooks", Tries: tries, Provoked: c.provoked,
		Hosts: []string{lent}, Secrets: []string{lent},
	}
	for _, m := range machines {
		allowed.Nodes = append(allowed.Nodes, m.name)
		allowed.Hosts = append(allowed.Hosts, m.name)
		allowed.Secrets = append(allowed.Secrets, m.name)
	}
	for _, uid := range c.pods.Pods() {
		allowed.Pods = append(allowed.Pods, c.pods.Of(uid)...)
	}
	if tried := slices.IndexFunc(events, allowed.IsTry); tried < 0 {
		c.t.Error("the log does not have what the test tried: it is not of this allowed")
	}
	findings := allowed.Check(events)
	for _, f := range findings {
		c.t.Error(f)
	}
	c.t.Logf("%d requests are checked, beside %d pods: %d findings", len(events), len(c.pods.Pods()), len(findings))
}
