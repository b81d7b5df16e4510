package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// account makes a service account with the rules, cluster-wide, and returns a
// kubeconfig of it.
func account(t *testing.T, ns, name string, rules ...rbacv1.PolicyRule) (kubeconfig string) {
	t.Helper()
	ctx := t.Context()
	meta := metav1.ObjectMeta{Name: ns + "-" + name}
	_, err := lab.Client.CoreV1().ServiceAccounts(ns).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	if len(rules) > 0 {
		_, err = lab.Client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		must(t, err)
		_, err = lab.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}}}, metav1.CreateOptions{})
		must(t, err)
		t.Cleanup(func() {
			must(t, lab.Client.RbacV1().ClusterRoleBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}))
			must(t, lab.Client.RbacV1().ClusterRoles().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}))
		})
	}
	// The API server hears of rights as everybody does: a moment later.
	for _, r := range rules {
		until(t, "the account has its rights", func(ctx context.Context) error {
			review, err := lab.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + ns + ":" + name, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Group: r.APIGroups[0], Resource: r.Resources[0], Verb: r.Verbs[0], Name: strings.Join(r.ResourceNames, "")}}}, metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = fmt.Errorf("it may not %s %s", r.Verbs, r.Resources)
			}
			return err
		})
	}
	hour := int64(3600)
	token, err := lab.Client.CoreV1().ServiceAccounts(ns).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}, metav1.CreateOptions{})
	must(t, err)
	config, err := clientcmd.LoadFromFile(lab.Host(host).NodeKubeconfig)
	must(t, err)
	for _, c := range config.Contexts {
		config.AuthInfos = map[string]*clientcmdapi.AuthInfo{c.AuthInfo: {Token: token.Status.Token}}
	}
	path := filepath.Join(hostDir(t), name+".kubeconfig")
	must(t, clientcmd.WriteToFile(*config, path))
	return path
}

func mayImpersonate(node string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users"}, Verbs: []string{"impersonate"}, ResourceNames: []string{"system:node:" + node}},
		{APIGroups: []string{""}, Resources: []string{"groups"}, Verbs: []string{"impersonate"}, ResourceNames: []string{"system:nodes"}},
	}
}

// withCredential makes the host's configuration one with another credential.
func withCredential(kubeconfig string) func(string) string {
	return func(yaml string) string {
		return strings.Replace(yaml, lab.Host(host).NodeKubeconfig, kubeconfig, 1)
	}
}

// A service account that may impersonate this one node, and may do nothing else, runs
// it; the same account can be no other node, and another's account not this one.
func TestImpersonate(t *testing.T) {
	ns := namespace(t)
	narrow := account(t, ns, "narrow", mayImpersonate(host)...)
	configured(t, withCredential(narrow), func() {
		create(t, ns, `
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: c, mountPath: /c}]}]
  volumes: [{name: c, configMap: {name: kube-root-ca.crt}}]
`)
		ready(t, ns, "web")
		if got := inPod(t, ns, "web", "ls /c"); got != "ca.crt" {
			t.Errorf("the configMap shows %q", got)
		}
		event(t, ns, "web", "Started")
		must(t, lab.Client.CoreV1().Pods(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}))
		until(t, "the pod goes", func(ctx context.Context) error {
			if _, err := lab.Client.CoreV1().Pods(ns).Get(ctx, "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		})
	}, "identity: {mode: Impersonate}")

	t.Run("nothing else", func(t *testing.T) {
		base, err := clientcmd.BuildConfigFromFlags("", narrow)
		must(t, err)
		as := func(user string, groups ...string) error {
			c := rest.CopyConfig(base)
			c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
			client, err := kubernetes.NewForConfig(c)
			must(t, err)
			_, err = client.CoreV1().Nodes().Get(t.Context(), host, metav1.GetOptions{})
			return err
		}
		must(t, as("system:node:"+host, "system:nodes"))
		for what, err := range map[string]error{
			"itself":              as(""),
			"another node":        as("system:node:host2", "system:nodes"),
			"an administrator":    as("system:node:"+host, "system:nodes", "system:masters"),
			"the node in no part": as("lab-admin"),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("as %s: %v", what, err)
			}
		}
	})
	t.Run("another node's account", func(t *testing.T) {
		other := account(t, ns, "other", mayImpersonate("host2")...)
		config := withCredential(other)(lab.ConfigYAML(host, "identity: {mode: Impersonate}"))
		refused(t, attempt(t, config), other, `resources: [users], verbs: [impersonate], resourceNames: ["system:node:`+host+`"]`, "cannot impersonate resource")
	})
	t.Run("an account without the group", func(t *testing.T) {
		halfway := account(t, ns, "halfway", mayImpersonate(host)[0])
		config := withCredential(halfway)(lab.ConfigYAML(host, "identity: {mode: Impersonate}"))
		refused(t, attempt(t, config), halfway, `resources: [groups], verbs: [impersonate], resourceNames: ["system:nodes"]`, "system:nodes")
	})
}

// A node object that a kubelet reports is not taken, and not changed in anything.
func TestForeignNode(t *testing.T) {
	ctx := t.Context()
	const name = "somebodys"
	_, err := lab.Client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { _ = lab.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	// Controllers write to it as well: a patch has no version that could be old.
	_, err = lab.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType,
		[]byte(`{"status": {"nodeInfo": {"kubeletVersion": "v1.37.1", "osImage": "Another"}}}`), metav1.PatchOptions{}, "status")
	must(t, err)

	ns := namespace(t)
	credential := account(t, ns, "claims", mayImpersonate(name)...)
	config := withCredential(credential)(lab.ConfigYAML(host, "identity: {mode: Impersonate}"))
	config = strings.Replace(config, "nodeName: "+host, "nodeName: "+name, 1)
	refused(t, attempt(t, config), `"`+name+`"`, "is not Bowline's", "kubectl annotate node "+name)
	n, err := lab.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	must(t, err)
	for _, f := range n.ManagedFields {
		if strings.HasPrefix(f.Manager, "bowline") {
			t.Errorf("it was changed: %s of %s", f.Operation, f.Manager)
		}
	}
	if _, err := lab.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it has a lease: %v", err)
	}
}
