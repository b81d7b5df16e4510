package link

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

const (
	minDelay   = time.Second
	maxDelay   = 30 * time.Second
	earlyDelay = 5 * time.Second // the limit in the first minute of an outage (early)
	early      = time.Minute

	// A refused login is not retried often: sshd since 9.8 blocks a source whose logins fail
	// (PerSourcePenalties), including its successful ones.
	minAuthDelay = 10 * time.Second
	maxAuthDelay = 5 * time.Minute

	// stable is how long a connection must have been up to clear the failures before it: one
	// that repeatedly ends at once counts as a failure.
	stable = 10 * time.Second
)

// backoff decides when to try next. It is a value without a clock.
type backoff struct {
	began   time.Time    // of the outage; zero if there is none
	network wait.Backoff // of attempts that the network failed, since began
	login   wait.Backoff // of refused logins
}

// fail counts a failed attempt, or a connection that did not last, and returns how long to wait
// before the next one. random is in [0,1).
func (b *backoff) fail(now time.Time, err error, random float64) time.Duration {
	if b.began.IsZero() {
		*b = outage(now)
	}
	var auth *endpoint.AuthError
	var key *endpoint.HostKeyError
	delay := time.Duration(0)
	if errors.As(err, &auth) || errors.As(err, &key) {
		delay = b.login.Step()
	} else {
		delay = b.network.Step()
		if now.Sub(b.began) < early {
			delay = min(delay, earlyDelay)
		}
	}
	// Up to a fifth less, so that nodes behind one jump host do not reconnect at the same time.
	return max(delay-time.Duration(random*float64(delay)/5), minDelay)
}

// lost counts the end of a connection that was up for that long, and returns how long to wait
// before the next attempt.
func (b *backoff) lost(now time.Time, up time.Duration, err error, random float64) time.Duration {
	if up < stable {
		return b.fail(now, err, random)
	}
	*b = outage(now)
	return time.Duration(random * float64(minDelay) / 2)
}

func outage(began time.Time) backoff {
	return backoff{began: began,
		network: wait.Backoff{Duration: minDelay, Factor: 2, Steps: 10, Cap: maxDelay},
		login:   wait.Backoff{Duration: minAuthDelay, Factor: 2, Steps: 10, Cap: maxAuthDelay}}
}
