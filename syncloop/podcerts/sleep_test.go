package podcerts

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/bowline-k8s/bowline/wall/walltest"
)

// A request that was deleted while the machine slept counts as deleted at wake-up, not a whole
// abandon later.
func TestARequestThatIsDeletedDuringASleep(t *testing.T) {
	now := time.Now()
	m := &Manager{lister: certificateslisters.NewPodCertificateRequestLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}))}
	r := &record{pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}, request: &request{name: "req-1", abandon: now.Add(abandon)}}
	m.look(key{}, r, now)
	if r.request == nil {
		t.Fatal("the request is given up at once")
	}
	m.look(key{}, r, walltest.Slept(now, time.Hour))
	if r.request != nil {
		t.Error("the request is waited for still")
	}
}

func TestWhenARecordIsDue(t *testing.T) {
	now := time.Now()
	issued := bundleOf(nil, &certificatesv1.PodCertificateRequest{Status: certificatesv1.PodCertificateRequestStatus{
		BeginRefreshAt: &metav1.Time{Time: now.Add(12 * time.Hour)}, NotAfter: &metav1.Time{Time: now.Add(24 * time.Hour)}}}, now)
	const ahead = 2 * time.Hour // of a clock that is ahead when the certificate comes
	early := bundleOf(nil, &certificatesv1.PodCertificateRequest{Status: certificatesv1.PodCertificateRequestStatus{
		BeginRefreshAt: &metav1.Time{Time: now.Add(30*time.Minute - ahead)}, NotAfter: &metav1.Time{Time: now.Add(time.Hour - ahead)}}}, now)
	over := bundleOf(nil, &certificatesv1.PodCertificateRequest{}, now)
	for what, c := range map[string]struct {
		r    record
		now  time.Time
		want bool // it is due
	}{
		"new":                             {record{}, now, true},
		"just failed":                     {record{again: now.Add(lastAgain)}, now, false},
		"failed, and a sleep":             {record{again: now.Add(lastAgain)}, walltest.Slept(now, time.Hour), true},
		"failed, and a clock set back":    {record{again: now.Add(lastAgain)}, walltest.Slept(now.Add(lastAgain), -time.Hour), true},
		"issued":                          {record{bundle: issued}, now, false},
		"issued, and a sleep":             {record{bundle: issued}, walltest.Slept(now, 13*time.Hour), true},
		"issued, and a renewal failed":    {record{bundle: issued, again: now.Add(13*time.Hour + lastAgain)}, now.Add(13 * time.Hour), false},
		"issued by a clock that is ahead": {record{bundle: early}, now, false},
		"issued by a clock that is ahead, which is set back": {record{bundle: early}, walltest.Slept(now.Add(rest), -ahead), false},
		"issued by a clock that is ahead, and time to renew": {record{bundle: early}, walltest.Slept(now.Add(36*time.Minute), -ahead), true},
		"issued for no time":              {record{bundle: over}, now, false},
		"issued for no time, and a sleep": {record{bundle: over}, walltest.Slept(now, time.Hour), true},
	} {
		if due := c.r.due(c.now); !due.After(c.now) != c.want {
			t.Errorf("%s: due in %v", what, due.Sub(c.now))
		}
	}
}
