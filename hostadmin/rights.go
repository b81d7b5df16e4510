package hostadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
)

// LabelIdentity is on the service account that the chart creates; its value is the chart's
// identity.mode.
const LabelIdentity = "bowline.io/identity"

// inForce is how long the API server may take to apply new rights.
const inForce = 15 * time.Second

// account is Bowline's service account.
type account struct {
	namespace, name string
	impersonates    bool // acts as a node by impersonation, not with a certificate of the node
}

func (a *account) String() string { return a.namespace + "/" + a.name }

func (a *account) user() string { return "system:serviceaccount:" + a.namespace + ":" + a.name }

// account finds Bowline's service account; nil if there is none, because Bowline may run outside of
// the cluster.
func (e *Editor) account(ctx context.Context, r *Request) (*account, error) {
	if r.ServiceAccount != "" {
		namespace, name, _ := strings.Cut(r.ServiceAccount, "/")
		a := &account{namespace: namespace, name: name, impersonates: true}
		sa, err := e.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err): // a user who may grant rights need not be allowed to see the account
		case err != nil:
			return nil, fmt.Errorf("--service-account %s: %w", r.ServiceAccount, err)
		default:
			a.impersonates = impersonates(sa)
		}
		return a, nil
	}
	list, err := e.Client.CoreV1().ServiceAccounts(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: LabelIdentity})
	switch {
	case apierrors.IsForbidden(err):
		e.step("You may not list the service accounts of %s: no RBAC objects are created. If Bowline runs in the cluster, set --service-account.", r.Namespace)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for Bowline's service account in %s: %w", r.Namespace, err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, r.Namespace+"/"+list.Items[i].Name)
	}
	slices.Sort(names)
	switch len(names) {
	case 0:
		e.step("The namespace %s has no service account of Bowline's chart: no RBAC objects are created.", r.Namespace)
		return nil, nil
	case 1:
		return &account{namespace: r.Namespace, name: list.Items[0].Name, impersonates: impersonates(&list.Items[0])}, nil
	}
	return nil, hint.Add(fmt.Errorf("several Bowlines run here: %s", strings.Join(names, ", ")), "choose the one for this host with --service-account")
}

func impersonates(sa *v1.ServiceAccount) bool {
	mode, known := sa.Labels[LabelIdentity]
	return !known || mode == "Impersonate"
}

// rights grants Bowline's account what this Host needs, and nothing else, unless it has that
// already: to act as the node, and to read the Secret.
func (e *Editor) rights(ctx context.Context, r *Request) error {
	a, err := e.account(ctx, r)
	if a == nil || err != nil {
		return err
	}
	grant := grantOf(a, r)
	has, known := e.granted(ctx, a, grant)
	if has {
		e.step("The service account %s already has the rights: %s.", a, grant.words)
		return nil
	}
	for _, right := range e.rightsOf(grant) {
		err := right.ensure(ctx, r.Name)
		if apierrors.IsForbidden(err) {
			return e.rightsByHand(ctx, a, r, grant, err)
		}
		if err != nil {
			return err
		}
	}
	e.step("The ClusterRole and the Role %[2]s give the service account %[1]s the rights: %[3]s.", a, grant.cluster.Name, grant.words)
	if known {
		e.awaitRights(ctx, a, grant)
	}
	return context.Cause(ctx)
}

// awaitRights waits until rights are in force, up to inForce. It returns false if they are known
// not to be.
func (e *Editor) awaitRights(ctx context.Context, a *account, g *grant) bool {
	for end := time.Now().Add(inForce); ; {
		has, known := e.granted(ctx, a, g)
		if has || !known {
			return true
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(e.Poll / 4):
		}
	}
}

// rightsByHand handles rights that the user may not grant: it shows them, and asks.
func (e *Editor) rightsByHand(ctx context.Context, a *account, r *Request, g *grant, refused error) error {
	text, err := g.yaml()
	if err != nil {
		return err
	}
	e.Reporter.Show(fmt.Sprintf("The service account %s needs these rights. Someone who has them must apply:\n\n%s\n"+
		"Keep them until the Host is gone, then delete them:\n"+
		"  kubectl delete clusterroles,clusterrolebindings -l %[3]s=%[4]s\n  kubectl delete roles,rolebindings -n %[5]s -l %[3]s=%[4]s\n\n",
		a, text, LabelHost, r.Name, r.Namespace))
	yes, err := e.Asker.Confirm(ctx, "Are the rights applied?")
	if errors.Is(err, ErrCannotAsk) || err == nil && !yes {
		return hint.Add(fmt.Errorf("you may not grant Bowline the rights for this host: %w", refused),
			"have someone who may apply the objects above, and run the command again (with --yes in a script)")
	}
	if err == nil && !e.awaitRights(ctx, a, g) {
		return hint.Add(fmt.Errorf("the service account %s does not have the rights for this host yet", a), "have the objects above applied, and run the command again")
	}
	return err
}

// granted reports whether the account has the rights. known is false if the user may not check
// that.
func (e *Editor) granted(ctx context.Context, a *account, g *grant) (has, known bool) {
	for _, attributes := range g.attributes() {
		answer, err := e.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: a.user(), ResourceAttributes: &attributes,
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + a.namespace, "system:authenticated"}},
		}, metav1.CreateOptions{})
		if err != nil {
			return false, false
		}
		if !answer.Status.Allowed {
			return false, true
		}
	}
	return true, true
}

// ownRights makes the Host the owner of its rights, so that they are deleted with it however it is
// deleted. They must not go earlier, because Bowline needs them to release the machine.
func (e *Editor) ownRights(ctx context.Context, r *Request, h *v1alpha1.Host) error {
	made, err := e.madeRights(ctx, r.Namespace, h.Name)
	if err != nil {
		return err
	}
	for _, right := range made {
		if err := right.own(ctx, h); err != nil && !apierrors.IsForbidden(err) { // rights that were granted by hand are deleted by hand
			return err
		}
	}
	return nil
}

// dropRights deletes what Add granted for a Host that is gone, unless the API server has deleted it
// with the Host.
func (e *Editor) dropRights(ctx context.Context, made []right) error {
	dropped := false
	for _, right := range made {
		err := right.drop(ctx)
		if apierrors.IsForbidden(err) {
			e.step("Kept the %s %s: you may not delete it.", right.kind, right.object.GetName())
			continue
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete the %s %s: %w", right.kind, right.object.GetName(), err)
		}
		dropped = true
	}
	if dropped {
		e.step("Deleted Bowline's rights for it.")
	}
	return nil
}

// madeRights are the rights that Add granted for a Host; none if the user may not list them.
func (e *Editor) madeRights(ctx context.Context, namespace, host string) ([]right, error) {
	api, of := e.Client.RbacV1(), metav1.ListOptions{LabelSelector: LabelHost + "=" + host}
	var made []right
	clusterBindings, err1 := api.ClusterRoleBindings().List(ctx, of)
	cluster, err2 := api.ClusterRoles().List(ctx, of)
	bindings, err3 := api.RoleBindings(namespace).List(ctx, of)
	roles, err4 := api.Roles(namespace).List(ctx, of)
	for _, err := range []error{err1, err2, err3, err4} {
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) { // NotFound: the API server has no RBAC
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("look for the rights of the Host %s: %w", host, err)
		}
	}
	for i := range clusterBindings.Items {
		made = append(made, rightIn(api.ClusterRoleBindings(), "ClusterRoleBinding", &clusterBindings.Items[i]))
	}
	for i := range cluster.Items {
		made = append(made, rightIn(api.ClusterRoles(), "ClusterRole", &cluster.Items[i]))
	}
	for i := range bindings.Items {
		made = append(made, rightIn(api.RoleBindings(namespace), "RoleBinding", &bindings.Items[i]))
	}
	for i := range roles.Items {
		made = append(made, rightIn(api.Roles(namespace), "Role", &roles.Items[i]))
	}
	return made, nil
}
