package helper

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/helper/rules"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

const (
	// MaxFlows is the most TCP connections at the same time, unless Config says otherwise.
	MaxFlows = 2048
	// MaxExchanges is the most exchanges of datagrams at the same time, without those of DNS.
	MaxExchanges = 1024
	// maxQuestions is the most DNS questions by UDP that are being answered; one more is dropped.
	maxQuestions = 1024

	dialTimeout  = 5 * time.Second  // of one backend on the host
	maxDials     = 4                // backends that are tried for a flow
	exchangeIdle = 30 * time.Second // after which an exchange of datagrams has ended, as in conntrack
	dnsTimeout   = 5 * time.Second  // of a question, by UDP and by TCP
	dnsIdle      = 10 * time.Second // of a TCP connection between two questions
	askAgain     = 2 * time.Second  // after which a question is sent to the exit again
	retryRules   = 10 * time.Second // after the rules could not be installed
	reportEvery  = 30 * time.Second // while the helper's counts change
)

// Rules are the rules of the host; *rules.Rules implements it. One goroutine uses them.
type Rules interface {
	Apply(rules.Wanted) error
	Kind() string
	Close() error
}

// Config says what a helper does.
type Config struct {
	// Sessions waits for the next session with an exit. Each replaces the one before, which ends.
	Sessions func(ctx context.Context) (wire.Session, error)
	// Rules opens the rules of the host. If it fails, the exit learns why, and it is called again.
	Rules func() (Rules, error)
	// Listen are the addresses at which redirected flows arrive, one of each IP family that is redirected.
	Listen []netip.Addr
	// Stale is how long DNS answers that have expired are served while the exit does not answer.
	Stale time.Duration
	// MaxFlows is the most TCP connections at the same time; 0: the constant.
	MaxFlows int

	original originalFunc // for tests, which have no rules
}

// validate lists what is wrong, and sets defaults.
func (c *Config) validate() error {
	var wrong []error
	if c.Sessions == nil || c.Rules == nil {
		wrong = append(wrong, errors.New("there is no source of sessions or of rules"))
	}
	if len(c.Listen) == 0 {
		wrong = append(wrong, errors.New("there is no address to listen at"))
	}
	seen := map[bool]bool{}
	for _, a := range c.Listen {
		if !a.IsValid() || a.Is4In6() || seen[a.Is4()] {
			wrong = append(wrong, fmt.Errorf("cannot listen at %s: one address of each IP family", a))
		}
		seen[a.Is4()] = true
	}
	if c.Stale < 0 || c.MaxFlows < 0 {
		wrong = append(wrong, errors.New("the stale time and the most flows cannot be negative"))
	}
	if c.MaxFlows == 0 {
		c.MaxFlows = MaxFlows
	}
	if c.original == nil {
		c.original = originalDestination
	}
	return errors.Join(wrong...)
}
