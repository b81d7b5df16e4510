// Package prepare fixes what keeps a host from being a node, and undoes the fixes.
//
// The pure Decide derives the fixes from what hostcheck found. Before anything is changed, one file
// below the root directory of the host records the change with the previous content. Undo restores
// that, where nothing else has changed it since.
package prepare

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/kubeclient"
)

func ParseSubnet(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 network", text)
	}
	return p, nil
}

// NodeSubnet returns the Node's podCIDR. It is invalid if the Node does not exist yet, or the
// cluster assigns none.
func NodeSubnet(ctx context.Context, kubeconfig, name string) (none netip.Prefix, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return none, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.Timeout = nodeTime
	client, err := kubeclient.New(config)
	if err != nil {
		return none, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return subnetOf(ctx, client, name)
}

func subnetOf(ctx context.Context, client kubernetes.Interface, name string) (none netip.Prefix, err error) {
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read the podCIDR of the Node %q: %w", name, err)
	}
	for _, text := range append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...) {
		if p, err := ParseSubnet(text); err == nil {
			return p, nil
		}
	}
	return none, nil
}

// Preparation is one run of "bowline host prepare".
type Preparation struct {
	Check   *hostcheck.Config
	Open    func(context.Context) (*connect.Host, error)
	RootDir string
	Node    Node
	DryRun  bool
	Show    func(text string)           // shows a fix or a note
	Agree   func(context.Context) error // an error stops the preparation
}

const (
	// rounds is how often fixes are decided: the network can be checked only once the runtime
	// answers.
	rounds = 3
	// recheckTime is how long a runtime may take to answer and to load its network.
	recheckTime  = 2 * time.Minute
	recheckPause = time.Second
	nodeTime     = 30 * time.Second // bounds one request for a Node
)

// errNoRoot is the error for a host whose runtime and files cannot be examined. The report says why.
var errNoRoot = errors.New("cannot prepare the host without root privileges: fix the failures above first")

// Run returns the report of the last check; nil after a dry run.
func (p *Preparation) Run(ctx context.Context) (*hostcheck.Report, error) {
	report, found := hostcheck.Look(ctx, *p.Check)
	for range rounds {
		if err := interrupted(ctx); err != nil {
			return nil, err
		}
		if !found.Asked {
			return report, errNoRoot
		}
		plan, err := p.decide(ctx, found)
		if err != nil {
			return nil, err
		}
		for _, m := range plan.Fixes {
			p.Show(m.Text())
		}
		for _, note := range plan.Notes {
			p.Show(note + "\n")
		}
		if p.DryRun {
			if len(plan.Fixes)+len(plan.Notes) == 0 {
				p.Show("There is nothing to fix.")
			}
			return nil, nil
		}
		if len(plan.Fixes) == 0 {
			break
		}
		if err := p.Agree(ctx); err != nil {
			return nil, err
		}
		if err := p.apply(ctx, plan.Fixes); err != nil {
			return nil, err
		}
		report, found = p.recheck(ctx, plan.Fixes)
	}
	if err := interrupted(ctx); err != nil {
		return nil, err
	}
	return report, nil
}

func interrupted(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return nil
}

func (p *Preparation) decide(ctx context.Context, found hostcheck.Found) (plan Plan, err error) {
	err = p.onMachine(ctx, func(m *connect.Host) error {
		root, err := connect.RealPath(ctx, m, p.RootDir)
		if err != nil {
			return err
		}
		facts, err := Inspect(ctx, m, root, found)
		plan = Decide(found, facts, p.Node)
		return err
	})
	return plan, err
}

// onMachine runs f on the host, over a connection of its own.
func (p *Preparation) onMachine(ctx context.Context, f func(m *connect.Host) error) error {
	m, err := p.Open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(m), m.Close())
}

func (p *Preparation) apply(ctx context.Context, fixes []Fix) error {
	return p.onMachine(ctx, func(m *connect.Host) error {
		root, err := connect.RealPath(ctx, m, p.RootDir)
		if err != nil {
			return err
		}
		return Apply(ctx, m, root, fixes)
	})
}

// recheck checks the host until the fixes have taken effect, at most for recheckTime.
func (p *Preparation) recheck(ctx context.Context, fixes []Fix) (*hostcheck.Report, hostcheck.Found) {
	enough := time.After(recheckTime)
	for {
		report, found := hostcheck.Look(ctx, *p.Check)
		shows := found.Asked
		for _, m := range fixes {
			switch m.Name {
			case FixCRI:
				shows = shows && found.CRI
			case FixNetwork:
				shows = shows && found.NetworkReady
			}
		}
		if shows {
			return report, found
		}
		select {
		case <-ctx.Done():
			return report, found
		case <-enough:
			return report, found
		case <-time.After(recheckPause):
		}
	}
}
