package linkpull

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/wall"
)

// Mode says where the images of a host come from.
type Mode string

const (
	Host Mode = "host" // the host's runtime pulls them
	Link Mode = "link" // this process does, and writes them over the link
	Auto Mode = "auto" // the runtime first, then over the link
)

// networkMayHelp reports whether another network may help after the host's runtime has failed to pull an image.
//
// A failed dial, a timeout and an unreachable network have no code of their own: containerd returns them as
// Unknown, and so it does most refusals of a registry. The text would tell them apart, but it is for people.
// It is not needed: over the link, the registry says for itself what it thinks of the image and the
// credentials. So everything is tried over the link but what the runtime has a code for that no network
// changes, and what it did not answer at all.
func networkMayHelp(err error) bool {
	var e *cri.Error
	if !errors.As(err, &e) || e.Unsent {
		return false
	}
	answer, ok := status.FromError(e.Err)
	if !ok {
		return false // of the context, or of the link
	}
	switch answer.Code() {
	case codes.Unknown, codes.Internal:
		return true
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted:
		// The runtime has given up a pull without progress. If the caller had, there would be no answer.
		return true
	}
	return false
}

const (
	// remembered is how long a registry is asked over the link at once, after that has helped.
	remembered = 10 * time.Minute
	// maxRemembered bounds the registries that are remembered for a host.
	maxRemembered = 64
)

// memory knows the registries that a host did not reach.
type memory struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// unreached reports whether the registry has to be asked over the link at once.
func (m *memory) unreached(registry string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	until, ok := m.until[registry]
	return ok && !wall.Passed(until, now)
}

// helped notes that the host failed to pull from a registry, and that the link helped.
func (m *memory) helped(registry string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.until == nil {
		m.until = map[string]time.Time{}
	}
	for r, until := range m.until {
		if wall.Passed(until, now) || len(m.until) >= maxRemembered {
			delete(m.until, r)
		}
	}
	m.until[registry] = now.Add(remembered)
}

// Progress is the text for a container that waits for its image: "62 of 410 MiB, over the link".
func Progress(done, total int64) string {
	const mib = 1 << 20
	return fmt.Sprintf("%d of %d MiB, over the link", done/mib, (total+mib-1)/mib)
}
