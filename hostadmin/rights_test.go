package hostadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// theAccount is the service account that the chart creates.
func theAccount(name string) *v1.ServiceAccount {
	return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "bowline", Labels: map[string]string{LabelIdentity: "Impersonate"}}}
}

// authorize answers as RBAC does.
func (w *world) authorize(action clienttesting.Action) (bool, runtime.Object, error) {
	review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
	asked := *review.Spec.ResourceAttributes
	for _, r := range w.rulesOf(strings.TrimPrefix(review.Spec.User, "system:serviceaccount:"), asked.Namespace) {
		if slices.Contains(r.Resources, asked.Resource) && slices.Contains(r.Verbs, asked.Verb) && slices.Contains(r.ResourceNames, asked.Name) {
			review.Status.Allowed = true
		}
	}
	return true, review, nil
}

// rulesOf are the rules granted to NAMESPACE:NAME, for the cluster or one namespace.
func (w *world) rulesOf(account, namespace string) (rules []rbacv1.PolicyRule) {
	list := func(resource, kind string, into any) {
		w.t.Helper()
		gv := rbacv1.SchemeGroupVersion
		o, err := w.client.Tracker().List(gv.WithResource(resource), gv.WithKind(kind), namespace)
		if err != nil {
			w.t.Error(err)
			return
		}
		switch into := into.(type) {
		case *rbacv1.RoleList:
			*into = *o.(*rbacv1.RoleList)
		case *rbacv1.RoleBindingList:
			*into = *o.(*rbacv1.RoleBindingList)
		case *rbacv1.ClusterRoleList:
			*into = *o.(*rbacv1.ClusterRoleList)
		case *rbacv1.ClusterRoleBindingList:
			*into = *o.(*rbacv1.ClusterRoleBindingList)
		}
	}
	bound := func(subjects []rbacv1.Subject, ref rbacv1.RoleRef, kind, role string) bool {
		return ref.Kind == kind && ref.Name == role && slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool { return s.Namespace+":"+s.Name == account })
	}
	if namespace == "" {
		var roles rbacv1.ClusterRoleList
		var bindings rbacv1.ClusterRoleBindingList
		list("clusterroles", "ClusterRole", &roles)
		list("clusterrolebindings", "ClusterRoleBinding", &bindings)
		for _, b := range bindings.Items {
			for _, r := range roles.Items {
				if bound(b.Subjects, b.RoleRef, "ClusterRole", r.Name) {
					rules = append(rules, r.Rules...)
				}
			}
		}
		return rules
	}
	var roles rbacv1.RoleList
	var bindings rbacv1.RoleBindingList
	list("roles", "Role", &roles)
	list("rolebindings", "RoleBinding", &bindings)
	for _, b := range bindings.Items {
		for _, r := range roles.Items {
			if bound(b.Subjects, b.RoleRef, "Role", r.Name) {
				rules = append(rules, r.Rules...)
			}
		}
	}
	return rules
}

// has lists in one line what the account may do.
func (w *world) has(account string) string {
	var all []string
	for _, r := range append(w.rulesOf(account, ""), w.rulesOf(account, "bowline")...) {
		all = append(all, fmt.Sprintf("%s %s %s", strings.Join(r.Verbs, ","), strings.Join(r.Resources, ","), strings.Join(r.ResourceNames, ",")))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

const wholeGrant = "get,list,watch secrets box-1; impersonate groups system:nodes; impersonate users system:node:box-1; patch,delete nodes box-1"

// forbid makes the API server refuse a verb on a resource.
func (w *world) forbid(verb, resource string) {
	w.client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, "", errors.New("not yours to give"))
	})
}

func (w *world) objects(t *testing.T) []right {
	t.Helper()
	made, err := w.madeRights(context.Background(), "bowline", "box-1")
	testutil.Must(t, err)
	return made
}

// TestRights: the account gets the rights for one Host; they are deleted with the Host.
func TestRights(t *testing.T) { inWorld(t, testRights) }

func testRights(t *testing.T, w *world) {
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), request()))
	if got := w.has("bowline:bowline"); got != wholeGrant {
		t.Errorf("it may %s", got)
	}
	made := w.objects(t)
	if len(made) != 4 {
		t.Errorf("there are %d objects", len(made))
	}
	for _, r := range made {
		if o := r.object.GetOwnerReferences(); len(o) != 1 || o[0].UID != w.hosts.byName["box-1"].UID || o[0].Kind != "Host" {
			t.Errorf("the %s belongs to %v", r.kind, o)
		}
	}
	// A second call changes nothing.
	testutil.Must(t, w.Add(w.ctx(), request()))
	if got := w.has("bowline:bowline"); got != wholeGrant || len(w.objects(t)) != 4 {
		t.Errorf("it may %s", got)
	}
	testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Wait: true}))
	if left := w.objects(t); len(left) != 0 || w.has("bowline:bowline") != "" {
		t.Errorf("%d objects are left", len(left))
	}
}

// TestRightsOfATry: the rights of a failed attempt are deleted too.
func TestRightsOfATry(t *testing.T) { inWorld(t, testRightsOfATry) }

func testRightsOfATry(t *testing.T, w *world) {
	r := request()
	a, err := w.account(w.ctx(), &r)
	testutil.Must(t, err)
	for _, right := range w.rightsOf(grantOf(a, &r))[:3] {
		testutil.Must(t, right.ensure(w.ctx(), "box-1"))
	}
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), r))
	if got := w.has("bowline:bowline"); got != wholeGrant {
		t.Errorf("gone on with, it may %s", got)
	}
	delete(w.hosts.byName, "box-1")
	testutil.Must(t, w.client.CoreV1().Secrets("bowline").Delete(t.Context(), "box-1", metav1.DeleteOptions{}))
	testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Wait: true}))
	if left := w.objects(t); len(left) != 0 {
		t.Errorf("%d objects are left", len(left))
	}
}

// TestRightsByMode: no right to impersonate if nodes have their own certificates.
func TestRightsByMode(t *testing.T) { inWorld(t, testRightsByMode) }

func testRightsByMode(t *testing.T, w *world) {
	a := theAccount("bowline")
	a.Labels[LabelIdentity] = "Bootstrap"
	_, err := w.client.CoreV1().ServiceAccounts("bowline").Update(t.Context(), a, metav1.UpdateOptions{})
	testutil.Must(t, err)
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), request()))
	if got := w.has("bowline:bowline"); got != "get,list,watch secrets box-1; patch,delete nodes box-1" {
		t.Errorf("it may %s", got)
	}
}

// TestRightsThatAreThere: rights that the chart grants already are not granted again.
func TestRightsThatAreThere(t *testing.T) { inWorld(t, testRightsThatAreThere) }

func testRightsThatAreThere(t *testing.T, w *world) {
	r := request()
	g := grantOf(&account{namespace: "bowline", name: "bowline", impersonates: true}, &r)
	for _, right := range w.rightsOf(g) {
		right.object.SetLabels(nil)
		right.object.SetName("chart")
	}
	g.clusterBinding.RoleRef.Name, g.binding.RoleRef.Name = "chart", "chart"
	for _, right := range w.rightsOf(g) {
		testutil.Must(t, right.ensure(w.ctx(), ""))
	}
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), r))
	if made := w.objects(t); len(made) != 0 || !strings.Contains(w.said.String(), "already has the rights") {
		t.Errorf("%d objects are made:\n%s", len(made), w.said.String())
	}
}

func TestRightsByHand(t *testing.T) { inWorld(t, testRightsByHand) }

func testRightsByHand(t *testing.T, w *world) {
	w.forbid("create", "clusterroles")
	w.answers = []bool{true, true}
	w.fails(w.Add(w.ctx(), request()), "you may not grant Bowline the rights", "not yours to give", "run the command again")
	w.noHost()
	// A user who says that they are granted, and is wrong, learns so before a Host is created.
	w.answers = []bool{true, true}
	w.fails(w.Add(w.ctx(), request()), "does not have the rights")
	w.noHost()
	_, text, _ := strings.Cut(w.said.String(), "Someone who has them must apply:\n\n")
	text, _, _ = strings.Cut(text, "\n\n")
	var kinds []string
	for part := range strings.SplitSeq(text, "---\n") {
		var o struct {
			metav1.TypeMeta `json:",inline"`
			metav1.ObjectMeta
		}
		testutil.Must(t, yaml.Unmarshal([]byte(part), &o))
		kinds = append(kinds, o.Kind)
		var into runtime.Object
		switch o.Kind {
		case "ClusterRole":
			into = &rbacv1.ClusterRole{}
		case "ClusterRoleBinding":
			into = &rbacv1.ClusterRoleBinding{}
		case "Role":
			into = &rbacv1.Role{}
		case "RoleBinding":
			into = &rbacv1.RoleBinding{}
		default:
			t.Fatalf("there is a %s in\n%s", o.Kind, text)
		}
		testutil.Must(t, yaml.UnmarshalStrict([]byte(part), into))
		testutil.Must(t, w.client.Tracker().Add(into))
	}
	if got := w.has("bowline:bowline"); got != wholeGrant || len(kinds) != 4 {
		t.Errorf("by %v it may %s", kinds, got)
	}
	// Someone has applied it: Add continues, even if no one can answer.
	w.said.Reset()
	w.answers = []bool{true} // the host key
	testutil.Must(t, w.Add(w.ctx(), request()))
	if !strings.Contains(w.said.String(), "already has the rights") {
		t.Error(w.said.String())
	}
}

// TestRightsUnseen: a user who may not review the access of others is believed.
func TestRightsUnseen(t *testing.T) { inWorld(t, testRightsUnseen) }

func testRightsUnseen(t *testing.T, w *world) {
	w.forbid("create", "subjectaccessreviews")
	for _, resource := range []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"} {
		w.forbid("*", resource)
	}
	w.answers = []bool{true, true, false}
	w.fails(w.Add(w.ctx(), request()), "you may not grant Bowline the rights")
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), request()))
	testutil.Must(t, w.Remove(w.ctx(), Removal{Name: "box-1", Namespace: "bowline", Wait: true}))
}

// TestRightsOfAnother: a role of that name that someone else made stays unchanged.
func TestRightsOfAnother(t *testing.T) { inWorld(t, testRightsOfAnother) }

func testRightsOfAnother(t *testing.T, w *world) {
	testutil.Must(t, w.client.Tracker().Add(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "bowline-host-box-1"}}))
	w.answers = []bool{true, true}
	w.fails(w.Add(w.ctx(), request()), "the ClusterRole bowline-host-box-1 exists, and this command did not create it")
	w.noHost()
}

func TestWhoseRights(t *testing.T) { inWorld(t, testWhoseRights) }

func testWhoseRights(t *testing.T, w *world) {
	testutil.Must(t, w.client.Tracker().Add(theAccount("second")))
	testutil.Must(t, w.client.Tracker().Add(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "mine", Namespace: "elsewhere"}}))
	r := request()
	_, err := w.account(w.ctx(), &r)
	w.fails(err, "several Bowlines", "--service-account", "bowline/bowline, bowline/second")
	r.ServiceAccount = "elsewhere/missing"
	_, err = w.account(w.ctx(), &r)
	w.fails(err, "--service-account elsewhere/missing", "not found")
	r.ServiceAccount = "none"
	w.fails(r.Check(), "--service-account", "NAMESPACE/NAME")
	r.ServiceAccount = "elsewhere/mine"
	testutil.Must(t, r.Check())
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), r))
	if got := w.has("elsewhere:mine"); got != wholeGrant || w.has("bowline:bowline") != "" {
		t.Errorf("it may %s", got)
	}
}

// TestRightsOfNoAccount: without the chart's account, no rights are granted.
func TestRightsOfNoAccount(t *testing.T) { inWorld(t, testRightsOfNoAccount) }

func testRightsOfNoAccount(t *testing.T, w *world) {
	testutil.Must(t, w.client.CoreV1().ServiceAccounts("bowline").Delete(t.Context(), "bowline", metav1.DeleteOptions{}))
	w.answers = []bool{true, true}
	testutil.Must(t, w.Add(w.ctx(), request()))
	if len(w.objects(t)) != 0 || !strings.Contains(w.said.String(), "no service account of Bowline's chart: no RBAC objects are created") {
		t.Error(w.said.String())
	}
	w.forbid("list", "serviceaccounts")
	r := request()
	if a, err := w.account(w.ctx(), &r); a != nil || err != nil || !strings.Contains(w.said.String(), "You may not list the service accounts") {
		t.Errorf("%v %v\n%s", a, err, w.said.String())
	}
}
