package ownership

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// TestTheNodeIsAWitness: the holder of the claim writes a Node that registers, or registers again,
// after the claim to the owner file, and retries a failed write.
func TestTheNodeIsAWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &claims{}
		h := NewHolder(NewFence(nil, func() int { return 1 }), c.take)
		testutil.Must(t, h.Acquire(ctx))
		a := &cluster.IdentityRecorder{Cluster: &cluster.Connection{Witnesses: owner.Witnesses{Service: "s"}}, Learn: h.Record, Due: notify.New()}
		ended := make(chan error, 2)
		go func() { ended <- h.Keep(ctx, Callbacks{Reacquired: a.Due.Send}) }()
		go func() { ended <- a.Run(ctx) }()
		made := func(uid string) *v1.Node {
			return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: types.UID(uid)}}
		}
		learned := func(what string, nodes ...string) {
			t.Helper()
			synctest.Wait()
			claim := c.newest()
			claim.mu.Lock()
			defer claim.mu.Unlock()
			var want []owner.Witnesses
			for _, uid := range nodes {
				want = append(want, owner.Witnesses{Service: "s", Node: uid})
			}
			if !reflect.DeepEqual(claim.learned, want) {
				t.Errorf("%s: %+v", what, claim.learned)
			}
		}
		learned("before it is registered", "")
		a.See(made("1"))
		a.See(made("1"))
		learned("registered", "", "1")
		a.See(made("2"))
		learned("registered again", "", "1", "2")
		theirs := made("3")
		theirs.Status.NodeInfo.KubeletVersion = "v1.37.1"
		a.See(theirs)
		learned("a kubelet's, by the same name", "", "1", "2")

		first := c.newest()
		first.mu.Lock()
		first.fails = errors.New("no space left")
		first.mu.Unlock()
		a.See(made("4"))
		learned("it cannot be written", "", "1", "2")
		first.mu.Lock()
		first.fails = nil
		first.mu.Unlock()
		time.Sleep(time.Minute) // longer than its pause
		learned("will retry", "", "1", "2", "4")
		close(first.lost)
		learned("held again, by another claim", "4")
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}
