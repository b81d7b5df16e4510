package hostadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
)

// grant is the RBAC objects that give the account its rights for one Host.
type grant struct {
	words          string
	cluster        *rbacv1.ClusterRole
	clusterBinding *rbacv1.ClusterRoleBinding
	role           *rbacv1.Role
	binding        *rbacv1.RoleBinding
}

// grantOf grants access to the Host's Node and Secret by name, and to nothing else.
func grantOf(a *account, r *Request) *grant {
	name, node := a.name+"-host-"+r.Name, r.nodeName()
	meta := metav1.ObjectMeta{Name: name, Labels: map[string]string{LabelHost: r.Name}}
	inNamespace := *meta.DeepCopy()
	inNamespace.Namespace = r.Namespace
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: a.namespace, Name: a.name}}
	kind := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: kind}
	}
	rule := func(resource, name string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: []string{name}, Verbs: verbs}
	}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}

	g := &grant{words: fmt.Sprintf("to change and delete the Node %s, and to read the Secret %s/%s", node, r.Namespace, r.Name)}
	rules := []rbacv1.PolicyRule{rule("nodes", node, "patch", "delete")}
	if a.impersonates {
		rules = append(rules, rule("users", "system:node:"+node, "impersonate"), rule("groups", "system:nodes", "impersonate"))
		g.words = fmt.Sprintf("to be the node %s (impersonate system:node:%s in the group system:nodes), ", node, node) + g.words
	}
	g.cluster = &rbacv1.ClusterRole{TypeMeta: kind("ClusterRole"), ObjectMeta: meta, Rules: rules}
	g.clusterBinding = &rbacv1.ClusterRoleBinding{TypeMeta: kind("ClusterRoleBinding"), ObjectMeta: meta, RoleRef: ref("ClusterRole"), Subjects: subjects}
	g.role = &rbacv1.Role{TypeMeta: kind("Role"), ObjectMeta: inNamespace, Rules: []rbacv1.PolicyRule{rule("secrets", r.Name, "get", "list", "watch")}}
	g.binding = &rbacv1.RoleBinding{TypeMeta: kind("RoleBinding"), ObjectMeta: inNamespace, RoleRef: ref("Role"), Subjects: subjects}
	return g
}

// attributes are all requests that the grant allows.
func (g *grant) attributes() (all []authorizationv1.ResourceAttributes) {
	add := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			for _, verb := range rule.Verbs {
				all = append(all, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Resource: rule.Resources[0], Name: rule.ResourceNames[0]})
			}
		}
	}
	add("", g.cluster.Rules)
	add(g.role.Namespace, g.role.Rules)
	return all
}

// yaml formats the grant for kubectl apply.
func (g *grant) yaml() (string, error) {
	var parts []string
	for _, o := range []any{g.cluster, g.clusterBinding, g.role, g.binding} {
		text, err := yaml.Marshal(o)
		if err != nil {
			return "", err
		}
		parts = append(parts, string(text))
	}
	return strings.Join(parts, "---\n"), nil
}

// right is one object of a grant, with its API calls.
type right struct {
	kind   string
	object metav1.Object
	// ensure creates or updates it. It fails if an object of that name was not made for the Host.
	ensure func(ctx context.Context, host string) error
	patch  func(ctx context.Context, body []byte) error
	drop   func(ctx context.Context) error
}

// rightsOf are a grant's objects in the API server. Each binding comes after its role, because it
// cannot be created without it.
func (e *Editor) rightsOf(g *grant) []right {
	api := e.Client.RbacV1()
	return []right{
		rightIn(api.ClusterRoles(), "ClusterRole", g.cluster),
		rightIn(api.ClusterRoleBindings(), "ClusterRoleBinding", g.clusterBinding),
		rightIn(api.Roles(g.role.Namespace), "Role", g.role),
		rightIn(api.RoleBindings(g.binding.Namespace), "RoleBinding", g.binding),
	}
}

// store is the API client of one kind.
type store[T metav1.Object] interface {
	Create(ctx context.Context, o T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Patch(ctx context.Context, name string, kind types.PatchType, body []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

func rightIn[T metav1.Object](s store[T], kind string, o T) right {
	return right{
		kind: kind, object: o,
		ensure: func(ctx context.Context, host string) error {
			_, err := s.Create(ctx, o, metav1.CreateOptions{})
			if !apierrors.IsAlreadyExists(err) {
				return failed(err, "make", kind, o)
			}
			have, err := s.Get(ctx, o.GetName(), metav1.GetOptions{})
			if err != nil {
				return failed(err, "read", kind, o)
			}
			if have.GetLabels()[LabelHost] != host {
				return hint.Add(fmt.Errorf("the %s %s exists, and this command did not create it", kind, o.GetName()), "choose another name for the host")
			}
			o.SetResourceVersion(have.GetResourceVersion())
			o.SetOwnerReferences(have.GetOwnerReferences())
			_, err = s.Update(ctx, o, metav1.UpdateOptions{})
			return failed(err, "change", kind, o)
		},
		patch: func(ctx context.Context, body []byte) error {
			_, err := s.Patch(ctx, o.GetName(), types.MergePatchType, body, metav1.PatchOptions{})
			return err
		},
		drop: func(ctx context.Context) error {
			return s.Delete(ctx, o.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(o.GetUID()))})
		},
	}
}

func failed(err error, verb, kind string, o metav1.Object) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s the %s %s: %w", verb, kind, o.GetName(), err)
}

// own makes the Host the owner of the right.
func (r *right) own(ctx context.Context, h *v1alpha1.Host) error {
	if slices.ContainsFunc(r.object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == h.UID }) {
		return nil
	}
	body, err := ownedBy(h, r.object.GetUID())
	if err != nil {
		return err
	}
	return failed(r.patch(ctx, body), "have go with its Host", r.kind, r.object)
}

// ownedBy is the patch that makes a Host the owner of the object with this UID.
func ownedBy(h *v1alpha1.Host, uid types.UID) ([]byte, error) {
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "ownerReferences": []metav1.OwnerReference{
		{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Host", Name: h.Name, UID: h.UID}}}})
}
