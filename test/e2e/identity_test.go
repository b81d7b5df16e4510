package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// account makes a service account with the rules, cluster-wide, and returns its kubeconfig.
func account(t *testing.T, ns, name string, rules ...rbacv1.PolicyRule) (kubeconfig string) {
	t.Helper()
	ctx := t.Context()
	_, err := lab.Client.CoreV1().ServiceAccounts(ns).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	if len(rules) > 0 {
		grant(t, ns+"-"+name, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}, rules...)
	}
	for _, r := range rules {
		effective(t, r, authorizationv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + ns + ":" + name})
	}
	hour := int64(3600)
	token, err := lab.Client.CoreV1().ServiceAccounts(ns).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hour}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	config, err := clientcmd.LoadFromFile(lab.Host(host).NodeKubeconfig)
	testutil.Must(t, err)
	for _, c := range config.Contexts {
		config.AuthInfos = map[string]*clientcmdapi.AuthInfo{c.AuthInfo: {Token: token.Status.Token}}
	}
	path := filepath.Join(hostDir(t), name+".kubeconfig")
	testutil.Must(t, clientcmd.WriteToFile(*config, path))
	return path
}

// grant gives a subject rights, cluster-wide, until the test ends.
func grant(t *testing.T, name string, to rbacv1.Subject, rules ...rbacv1.PolicyRule) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: name}
	_, err := lab.Client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	testutil.Must(t, err)
	_, err = lab.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: []rbacv1.Subject{to},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	t.Cleanup(func() {
		testutil.Must(t, lab.Client.RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}))
		testutil.Must(t, lab.Client.RbacV1().ClusterRoles().Delete(context.Background(), name, metav1.DeleteOptions{}))
	})
}

// effective waits until the user has the right: the API server's authorizer watches RBAC objects
// and lags a moment.
func effective(t *testing.T, right rbacv1.PolicyRule, who authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	resource, sub, _ := strings.Cut(right.Resources[0], "/")
	who.ResourceAttributes = &authorizationv1.ResourceAttributes{Group: right.APIGroups[0], Resource: resource, Subresource: sub, Verb: right.Verbs[0]}
	if len(right.ResourceNames) > 0 {
		who.ResourceAttributes.Name = right.ResourceNames[0]
	}
	until(t, "a right is in effect", func(ctx context.Context) error {
		review, err := lab.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: who}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("%s %s is refused", right.Verbs, right.Resources)
		}
		return err
	})
}

func mayImpersonate(node string) []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"users"}, Verbs: []string{"impersonate"}, ResourceNames: []string{"system:node:" + node}},
		{APIGroups: []string{""}, Resources: []string{"groups"}, Verbs: []string{"impersonate"}, ResourceNames: []string{"system:nodes"}},
	}
}

// withCredential replaces the credential in the host's configuration.
func withCredential(kubeconfig string) func(string) string {
	return func(yaml string) string {
		return strings.Replace(yaml, lab.Host(host).NodeKubeconfig, kubeconfig, 1)
	}
}

// A service account that may impersonate this one node, and nothing else, can run it. The same
// account can be no other node, and another's account not this one.
func TestImpersonate(t *testing.T) {
	serial(t)
	ns := namespace(t)
	narrow := account(t, ns, "narrow", mayImpersonate(host)...)
	configured(t, withCredential(narrow), func() {
		create(t, ns, brief("web", `
  containers: [{name: main, image: $TOOLBOX, command: [sleep, inf], volumeMounts: [{name: c, mountPath: /c}]}]
  volumes: [{name: c, configMap: {name: kube-root-ca.crt}}]
`))
		ready(t, ns, "web")
		equal(t, "the configMap's files", inPod(t, ns, "web", "ls /c"), "ca.crt")
		event(t, ns, "web", "Started")
		deletePod(t, ns, "web", metav1.DeleteOptions{}, 2*time.Minute)
	}, "identity: {mode: Impersonate}")

	t.Run("nothing else", func(t *testing.T) {
		base, err := clientcmd.BuildConfigFromFlags("", narrow)
		testutil.Must(t, err)
		as := func(user string, groups ...string) error {
			c := rest.CopyConfig(base)
			c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
			client, err := kubernetes.NewForConfig(c)
			testutil.Must(t, err)
			_, err = client.CoreV1().Nodes().Get(t.Context(), host, metav1.GetOptions{})
			return err
		}
		testutil.Must(t, as("system:node:"+host, "system:nodes"))
		for what, err := range map[string]error{
			"itself":           as(""),
			"another node":     as("system:node:host2", "system:nodes"),
			"an administrator": as("system:node:"+host, "system:nodes", "system:masters"),
			"another user":     as("lab-admin"),
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

// A Node object that a kubelet reports is not taken over, and not changed.
func TestForeignNode(t *testing.T) {
	serial(t)
	ctx := t.Context()
	const name = "somebodys"
	_, err := lab.Client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = lab.Client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}) })
	// Controllers write to it as well: a patch needs no current version.
	_, err = lab.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType,
		[]byte(`{"status": {"nodeInfo": {"kubeletVersion": "v1.37.1", "osImage": "Another"}}}`), metav1.PatchOptions{}, "status")
	testutil.Must(t, err)

	ns := namespace(t)
	credential := account(t, ns, "claims", mayImpersonate(name)...)
	config := withCredential(credential)(lab.ConfigYAML(host, "identity: {mode: Impersonate}"))
	config = strings.Replace(config, "nodeName: "+host, "nodeName: "+name, 1)
	refused(t, attempt(t, config), `"`+name+`"`, "does not belong to Bowline", "kubectl annotate node "+name)
	n, err := lab.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	testutil.Must(t, err)
	for _, f := range n.ManagedFields {
		if strings.HasPrefix(f.Manager, "bowline") {
			t.Errorf("it was changed: %s of %s", f.Operation, f.Manager)
		}
	}
	if _, err := lab.Client.CoordinationV1().Leases("kube-node-lease").Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it has a lease: %v", err)
	}
}

var (
	mayAsk = rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"},
		Verbs: []string{"create", "get", "list", "watch"}}
	// The controller manager approves requests of accounts with these rights.
	nodeClient     = rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests/nodeclient"}, Verbs: []string{"create"}}
	selfNodeClient = rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests/selfnodeclient"}, Verbs: []string{"create"}}
)

// renewsItself lets the controller manager approve the renewals of nodes, as in a cluster made by
// kubeadm.
func renewsItself(t *testing.T, name string) {
	t.Helper()
	grant(t, name, rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:nodes"}, selfNodeClient)
	effective(t, selfNodeClient, authorizationv1.SubjectAccessReviewSpec{User: "system:node:" + host, Groups: []string{"system:nodes"}})
}

// kept is the certificate in a file of a certificateDirectory.
func kept(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		return nil // between two files: the next attempt finds it
	}
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	testutil.Must(t, err)
	return cert
}

// nearItsEnd replaces a kept certificate by one of the same node, signed by the lab's CA, with 50
// hours of its life over and one left.
func nearItsEnd(t *testing.T, file string) {
	t.Helper()
	authority := lab.Host(host).ClientCA
	pair, err := tls.LoadX509KeyPair(authority, strings.TrimSuffix(authority, ".crt")+".key")
	testutil.Must(t, err)
	signer, err := x509.ParseCertificate(pair.Certificate[0])
	testutil.Must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-50 * time.Hour), NotAfter: time.Now().Add(time.Hour),
		Subject:  pkix.Name{CommonName: "system:node:" + host, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, signer, key.Public(), pair.PrivateKey)
	testutil.Must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	testutil.Must(t, err)
	target, err := filepath.EvalSymlinks(file)
	testutil.Must(t, err)
	// In place, so that the file's owner stays the process's user.
	testutil.Must(t, os.WriteFile(target, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...), 0o600))
}

// A credential that may only request a certificate makes the node. The certificate is kept, lets
// the next process run without the credential, and is renewed.
func TestBootstrap(t *testing.T) {
	onlyLocal(t, "the certificates belong to the process, not to the host")
	serial(t)
	ns := namespace(t)
	renewsItself(t, ns+"-renewal")
	bootstrap := account(t, ns, "bootstrap", mayAsk, nodeClient)
	dir := hostDir(t)
	current := filepath.Join(dir, host+"-client-current.pem")
	identity := func(file string) string {
		return fmt.Sprintf("identity: {mode: Bootstrap, bootstrapKubeconfig: %s, certificateDirectory: %s}", file, dir)
	}
	configured(t, withCredential("/none"), func() {
		cert := kept(t, current)
		if cert == nil || cert.Subject.CommonName != "system:node:"+host {
			t.Fatalf("what is kept is %+v", cert)
		}
		info, err := os.Stat(current)
		testutil.Must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("it has mode %s", info.Mode())
		}
		create(t, ns, podThatSleeps("first"))
		ready(t, ns, "first")
	}, identity(bootstrap))
	nearItsEnd(t, current)
	// An account without any right: the kept certificate must suffice.
	configured(t, withCredential("/none"), func() {
		until(t, "the certificate is renewed", func(context.Context) error {
			if cert := kept(t, current); cert == nil || cert.SerialNumber.Int64() == 7 {
				return fmt.Errorf("it is not")
			}
			return nil
		})
		create(t, ns, podThatSleeps("second"))
		ready(t, ns, "second")
		if p := ready(t, ns, "first"); p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Error("the first pod was started again")
		}
		list, err := lab.Client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		testutil.Must(t, err)
		renewals := 0
		for _, r := range list.Items {
			if r.Spec.Username == "system:node:"+host && r.Spec.SignerName == "kubernetes.io/kube-apiserver-client-kubelet" && len(r.Status.Certificate) > 0 {
				renewals++
			}
		}
		if renewals == 0 {
			t.Error("no certificate was signed for the node itself")
		}
	}, identity(account(t, ns, "nobody")))
	t.Run("without the right", func(t *testing.T) {
		powerless := account(t, ns, "nothing")
		config := withCredential("/none")(lab.ConfigYAML(host, fmt.Sprintf("identity: {mode: Bootstrap, bootstrapKubeconfig: %s, certificateDirectory: %s}", powerless, hostDir(t))))
		refused(t, attempt(t, config), powerless, "system:node-bootstrapper", "certificatesigningrequests")
	})
}

// An account that may approve makes its node's certificates itself, including the serving
// certificate, which the API server verifies.
func TestCSR(t *testing.T) {
	onlyLocal(t, "the certificates belong to the process, not to the host")
	serial(t)
	ns := namespace(t)
	maker := account(t, ns, "maker", mayAsk,
		rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests/approval"}, Verbs: []string{"update"}},
		rbacv1.PolicyRule{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, Verbs: []string{"approve"},
			ResourceNames: []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}})
	dir := hostDir(t)
	h := lab.Host(host)
	change := func(yaml string) string {
		return strings.NewReplacer("    tlsCertFile: "+h.Serving.Cert+"\n", "", "    tlsPrivateKeyFile: "+h.Serving.Key+"\n", "    address: 0.0.0.0\n").
			Replace(withCredential(maker)(yaml))
	}
	configured(t, change, func() {
		create(t, ns, podThatSleeps("made"))
		ready(t, ns, "made")
		// The API server does not accept a certificate that the node signed itself.
		equal(t, "what exec prints", inPod(t, ns, "made", "echo hello"), "hello")
		for _, purpose := range []string{"client", "serving"} {
			if cert := kept(t, filepath.Join(dir, host+"-"+purpose+"-current.pem")); cert == nil || cert.Subject.CommonName != "system:node:"+host {
				t.Errorf("the %s certificate is %+v", purpose, cert)
			}
		}
		contains(t, "the log", bowline.LogTail(1<<20), "Using identity mode CSR, which lets this account become any node")
	}, "identity: {mode: CSR, certificateDirectory: "+dir+"}", "serverTLSBootstrap: true")
}
