package hostadmin

import (
	"cmp"
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// Hosts is the part of the Hosts API that this package needs: *hosts.Client.
type Hosts interface {
	Get(ctx context.Context, name string) (*v1alpha1.Host, error)
	List(ctx context.Context, opts metav1.ListOptions) (*v1alpha1.HostList, error)
	Create(ctx context.Context, h *v1alpha1.Host) (*v1alpha1.Host, error)
	Patch(ctx context.Context, name string, body []byte) error
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// LabelHost is on the Secrets and rights that "host add" made. Its value is the Host's name.
const LabelHost = "bowline.io/host"

// host is the object that r asks for.
func (r *Request) host(endpoint string, hostKeys []string) *v1alpha1.Host {
	h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: r.Name}}
	h.APIVersion, h.Kind = v1alpha1.GroupVersion.String(), "Host"
	h.Spec = v1alpha1.HostSpec{
		Endpoint: endpoint, CredentialsSecretRef: &v1alpha1.SecretRef{Name: r.Name}, HostKeys: hostKeys,
		Labels: r.Labels, Taints: r.Taints, KubeletExposure: r.Exposure, LinkGrace: r.LinkGrace,
	}
	for _, j := range r.jumps {
		if h.Spec.SSH == nil {
			h.Spec.SSH = &v1alpha1.HostSSH{}
		}
		h.Spec.SSH.ProxyJump = append(h.Spec.SSH.ProxyJump, v1alpha1.Jump{User: j.User, Address: j.Address, Port: int32(cmp.Or(j.Port, 22)), HostKeys: j.HostKeys})
	}
	if r.nodeName() != r.Name {
		h.Spec.NodeName = r.NodeName
	}
	return h
}

// Way is the jumps to a Host's machine, in the order of dialling.
func Way(h *v1alpha1.Host) []endpoint.Jump {
	var way []endpoint.Jump
	for _, j := range v1alpha1.Jumps(h) {
		way = append(way, endpoint.Jump{User: j.User, Address: j.Address, Port: int(j.Port), HostKeys: j.HostKeys})
	}
	return way
}

// nodeName is the name of a Host's node.
func nodeName(h *v1alpha1.Host) string {
	if h.Spec.NodeName != "" {
		return h.Spec.NodeName
	}
	return h.Name
}

// secret returns the Host's Secret with its key, or nil. A Secret that someone else made is an
// error.
func (e *Editor) secret(ctx context.Context, r *Request) (*v1.Secret, error) {
	s, err := e.Client.CoreV1().Secrets(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the Secret %s/%s: %w", r.Namespace, r.Name, err)
	case s.Labels[LabelHost] != r.Name:
		return nil, hint.Add(fmt.Errorf("the Secret %s/%s exists, and this command did not create it", r.Namespace, r.Name),
			"choose another name for the host, or create the Host with that Secret yourself (docs/hosts.md)")
	case len(s.Data[v1.SSHAuthPrivateKey]) == 0:
		return nil, hint.Add(fmt.Errorf("the Secret %s/%s has no %s", r.Namespace, r.Name, v1.SSHAuthPrivateKey), "run kubectl delete secret -n %s %s, and run the command again", r.Namespace, r.Name)
	}
	return s, nil
}

// makeSecret stores a key before it is used, so that a second attempt finds the same one.
func (e *Editor) makeSecret(ctx context.Context, r *Request, key []byte) (*v1.Secret, error) {
	s, err := e.Client.CoreV1().Secrets(r.Namespace).Create(ctx, &v1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Namespace: r.Namespace, Labels: map[string]string{LabelHost: r.Name}},
		Type:       v1.SecretTypeSSHAuth, Data: map[string][]byte{v1.SSHAuthPrivateKey: key},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create the Secret %s/%s: %w", r.Namespace, r.Name, err)
	}
	return s, nil
}

// own makes the Host the owner of its Secret, so that it is deleted with the Host however that is
// deleted. It must not go earlier, because Bowline needs the login to release the machine.
func (e *Editor) own(ctx context.Context, s *v1.Secret, h *v1alpha1.Host) error {
	for _, o := range s.OwnerReferences {
		if o.UID == h.UID {
			return nil
		}
	}
	body, err := ownedBy(h, s.UID)
	if err != nil {
		return err
	}
	if _, err := e.Client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the Host as the owner of the Secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}
