package hostadmin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/logonce"
)

// Removal is a request to remove a Host.
type Removal struct {
	Name      string
	Namespace string // Bowline's own, which has the Secret
	Detach    bool   // its pods keep running; otherwise the Host's deletionPolicy decides
	Wait      bool   // until it is gone
}

// Remove deletes a Host, and with it the Secret and the rights that Add made. With Wait it shows
// what the deletion waits for, until ctx ends. It may be called again to continue waiting.
func (e *Editor) Remove(ctx context.Context, r Removal) error {
	h, err := e.Hosts.Get(ctx, r.Name)
	if apierrors.IsNotFound(err) {
		return e.nothing(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("read the Host %s: %w", r.Name, err)
	}
	secret, err := e.madeSecret(ctx, r.Namespace, r.Name)
	if err != nil {
		return err
	}
	rights, err := e.madeRights(ctx, r.Namespace, r.Name)
	if err != nil {
		return err
	}
	if r.Detach && h.Spec.DeletionPolicy != v1alpha1.DeletionDetach {
		if err := e.Hosts.Patch(ctx, r.Name, []byte(`{"spec":{"deletionPolicy":"detach"}}`)); err != nil {
			return fmt.Errorf("detach the Host %s: %w", r.Name, err)
		}
		h.Spec.DeletionPolicy = v1alpha1.DeletionDetach
	}
	if h.DeletionTimestamp == nil {
		err := e.Hosts.Delete(ctx, r.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(h.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the Host %s: %w", r.Name, err)
		}
	}
	if h.Spec.DeletionPolicy == v1alpha1.DeletionDetach {
		e.step("The Host %s is being detached: its pods keep running on the host.", r.Name)
	} else {
		e.step("The Host %s is being drained.", r.Name)
	}
	if !r.Wait {
		e.step("Not waiting for the end; %s host list shows the progress.", e.Command)
		return nil
	}
	if err := e.gone(ctx, h); err != nil {
		return err
	}
	e.step("The Host %s and its node are gone.", r.Name)
	if err := e.dropRights(ctx, rights); err != nil {
		return err
	}
	if secret == nil {
		return nil
	}
	if err := e.dropSecret(ctx, secret); err != nil {
		return err
	}
	u, err := endpoint.Parse(h.Spec.Endpoint)
	if err != nil {
		return nil // not over SSH
	}
	port := ""
	if u.Port != 0 {
		port = fmt.Sprintf("-p %d ", u.Port)
	}
	e.Reporter.Show(fmt.Sprintf("\nThe key is still in authorized_keys on the host. To remove it:\n  ssh %s%s@%s \"sed -i '/ %s\\$/d' ~/.ssh/authorized_keys\"\n", port, u.User, u.Host, comment(r.Name)))
	return nil
}

// nothing handles a Host that does not exist: it deletes what an earlier attempt left.
func (e *Editor) nothing(ctx context.Context, r Removal) error {
	secret, err := e.madeSecret(ctx, r.Namespace, r.Name)
	if err != nil {
		return err
	}
	rights, err := e.madeRights(ctx, r.Namespace, r.Name)
	if err != nil {
		return err
	}
	if secret == nil && len(rights) == 0 {
		return hint.Add(fmt.Errorf("the Host %s does not exist", r.Name), "see all Hosts with %s host list", e.Command)
	}
	e.step("The Host %s does not exist any more.", r.Name)
	if err := e.dropRights(ctx, rights); secret == nil || err != nil {
		return err
	}
	return e.dropSecret(ctx, secret)
}

// madeSecret returns the Secret that Add made for a Host, or nil.
func (e *Editor) madeSecret(ctx context.Context, namespace, host string) (*v1.Secret, error) {
	s, err := e.Client.CoreV1().Secrets(namespace).Get(ctx, host, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the Secret %s/%s: %w", namespace, host, err)
	case s.Labels[LabelHost] != host || s.Type != v1.SecretTypeSSHAuth:
		return nil, nil
	}
	return s, nil
}

// dropSecret deletes a Secret, unless the API server has deleted it with its Host.
func (e *Editor) dropSecret(ctx context.Context, s *v1.Secret) error {
	err := e.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete the Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	e.step("Deleted the Secret %s/%s with its key.", s.Namespace, s.Name)
	return nil
}

// gone waits until the Host is gone, and shows what its deletion waits for.
func (e *Editor) gone(ctx context.Context, h *v1alpha1.Host) error {
	said, waits := "", ""
	var failure logonce.Failure
	for {
		now, err := e.Hosts.Get(ctx, h.Name)
		switch {
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err) || err == nil && now.UID != h.UID:
			return nil
		case err != nil:
			if failure.Changed(err) {
				said, waits = fmt.Sprintf("Cannot read the Host, will retry: %v", err), ""
				e.step("%s", said)
			}
		default:
			failure = logonce.Failure{}
			if text := awaited(now); text != waits {
				said, waits = text, text
				e.step("%s", text)
			}
		}
		select {
		case <-ctx.Done():
			why := "not gone in time"
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				why = "interrupted"
			}
			return hint.Add(fmt.Errorf("the Host %s: %s; %s; the removal continues", h.Name, why, said), "run the command again to watch, with --detach if the host no longer exists")
		case <-time.After(e.Poll):
		}
	}
}

// awaited is what a deleted Host's status says. It ignores reasons from before the deletion.
func awaited(h *v1alpha1.Host) string {
	c := meta.FindStatusCondition(h.Status.Conditions, v1alpha1.ConditionReady)
	if c != nil && slices.Contains([]string{hosts.ReasonDraining, hosts.ReasonReleasing, hosts.ReasonDetaching, hosts.ReasonBlocked}, c.Reason) {
		return c.Reason + ": " + c.Message
	}
	return "Deleted; waiting for Bowline to release the host"
}
