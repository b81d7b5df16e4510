package imagegcpolicy

import (
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/wall/walltest"
)

// An image's age includes the time that the machine slept.
func TestAgesCountSleep(t *testing.T) {
	now := time.Now()
	images := []*runtimeapi.Image{{Id: "idle"}, {Id: "used"}}
	containers := []*runtimeapi.Container{{ImageId: "used"}}
	records := Look(nil, now, images, containers, func(*runtimeapi.Image) bool { return false })
	later := walltest.Slept(now, 48*time.Hour)
	records = Look(records, later, images, nil, func(*runtimeapi.Image) bool { return false })
	if got := Settled(records, later, time.Hour); !slices.Equal(got, []string{"idle", "used"}) {
		t.Errorf("settled are %v", got)
	}
	if got := Old(records, later, 24*time.Hour); !slices.Equal(got, []string{"idle", "used"}) {
		t.Errorf("old are %v", got)
	}
}
