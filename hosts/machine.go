package hosts

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// ReasonOtherMachine is the reason of the condition Ready and of the event while a machine answers
// that is not the one that the Host was first managed on.
const ReasonOtherMachine = "OtherMachine"

// OtherMachineError says that a machine is not the one that its Host was first managed on. Nothing
// of the node has been sent to it.
type OtherMachineError struct {
	Host            string // the name of the object
	Recorded, Found v1alpha1.MachineStatus
}

func (e *OtherMachineError) Error() string {
	return fmt.Sprintf("found another machine than the recorded one (%s, recorded %s)", identity(e.Found), identity(e.Recorded))
}

// Hint has the command that accepts the machine.
func (e *OtherMachineError) Hint() string {
	return fmt.Sprintf("if it replaces the old one, accept it:\nkubectl patch host %s --subresource=status --type=merge -p '%s'", e.Host, e.accepts())
}

// accepts is the status patch that accepts the machine that was found, and no other. The shell
// command puts it between single quotes, and anyone who may edit the Host can influence parts of
// it, so single quotes are escaped.
func (e *OtherMachineError) accepts() string {
	value := func(s string) string {
		if s == "" {
			return "null"
		}
		text, err := json.Marshal(s)
		if err != nil {
			panic(err) // cannot happen: it is a string
		}
		return strings.ReplaceAll(string(text), "'", `\u0027`)
	}
	return fmt.Sprintf(`{"status":{"machine":{"machineID":%s,"hostKey":%s,"user":%s,"socket":%s}}}`,
		value(e.Found.MachineID), value(e.Found.HostKey), value(e.Found.User), value(e.Found.Socket))
}

func identity(m v1alpha1.MachineStatus) string {
	words := []string{"no machine-id", "no SSH host key"}
	if m.MachineID != "" {
		words[0] = "the machine-id " + m.MachineID
	}
	if m.HostKey != "" {
		words[1] = "the SSH host key " + m.HostKey
	}
	if m.User != "" {
		words = append(words, "the user "+strconv.Quote(m.User))
	}
	if m.Socket != "" {
		words = append(words, "the socket "+strconv.Quote(m.Socket))
	}
	return strings.Join(words, " and ")
}

// machineID is the format of a machine-id(5).
var machineID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Machine identifies a machine by its machine-id(5) and by the fingerprint of the SSH host key that
// it was accepted by. An invalid machine-id, such as the "uninitialized" of an image, counts as
// none.
func Machine(id, hostKey string) v1alpha1.MachineStatus {
	m := v1alpha1.MachineStatus{HostKey: hostKey}
	if id = strings.ToLower(id); machineID.MatchString(id) {
		m.MachineID = id
	}
	return m
}

// another reports whether found is a machine other than the recorded one. Anyone who may read Nodes
// knows a machine-id, but only the machine has the private half of its host key. So the key must
// match, and the machine-id where one is recorded. The key proves only which sshd answers: any
// login of the machine could answer as root, or serve a socket of its own. So the user and the
// socket must match as well.
func another(recorded, found v1alpha1.MachineStatus) bool {
	differs := func(recorded, found string) bool { return recorded != "" && found != recorded }
	return found.HostKey != recorded.HostKey || differs(recorded.MachineID, found.MachineID) ||
		differs(recorded.User, found.User) || differs(recorded.Socket, found.Socket)
}

// completed is the record, plus the fields that an older Bowline did not record of the same
// machine.
func completed(recorded *v1alpha1.MachineStatus, found v1alpha1.MachineStatus) v1alpha1.MachineStatus {
	if recorded == nil {
		return found
	}
	m := *recorded
	m.User, m.Socket = found.User, found.Socket
	return m
}

// recordTries bounds the attempts to write a record after conflicts.
const recordTries = 5

// Recognize returns nil if a machine may be managed for the Host called name. A driver calls it
// before it sends anything of the node to the machine. The first machine is recorded before it is
// managed. Any other is refused with an *OtherMachineError for as long as that record exists.
//
// A Host's spec and status are one object, so a record is never read together with an older spec.
func (s *Source) Recognize(ctx context.Context, name string, found v1alpha1.MachineStatus) error {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	h := s.get(name)
	if h == nil {
		return fmt.Errorf("the Host %s does not exist any more", name)
	}
	for try := 1; h.Status.Machine == nil || *h.Status.Machine != completed(h.Status.Machine, found); try++ {
		if h.Status.Machine != nil && another(*h.Status.Machine, found) {
			break
		}
		// The cached Host may be older than a record by another process.
		var err error
		if h, err = s.cfg.API.Get(ctx, name); err != nil {
			return fmt.Errorf("read the recorded machine of the Host %s: %w", name, err)
		}
		want := completed(h.Status.Machine, found)
		if h.Status.Machine != nil && (another(*h.Status.Machine, found) || *h.Status.Machine == want) {
			break
		}
		var now *v1alpha1.Host
		now, err = s.cfg.API.RecordMachine(ctx, h, want)
		switch {
		case err == nil && (now.Status.Machine == nil || *now.Status.Machine != want):
			// Helm does not upgrade CRDs. Refusing the machine would end every node of such a
			// cluster.
			klog.FromContext(ctx).Error(nil, "Failed to record the host: the CRD is outdated", "crd", "charts/bowline/crds/bowline.io_hosts.yaml", "effect", "another machine could take the place of the host")
			return nil
		case err == nil:
			klog.FromContext(ctx).Info("Recorded the machine of the Host", "machineID", want.MachineID, "hostKey", want.HostKey, "user", want.User, "socket", want.Socket)
			return nil
		case !apierrors.IsConflict(err) || try == recordTries:
			return fmt.Errorf("record the machine of the Host %s: %w", name, err)
		}
	}
	if another(*h.Status.Machine, found) {
		return &OtherMachineError{name, *h.Status.Machine, found}
	}
	return nil
}
