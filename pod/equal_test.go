package pod

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEqual(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	elsewhere := metav1.NewTime(at.In(time.FixedZone("", 3600)))
	later := metav1.NewTime(at.Add(time.Second))
	for _, c := range []struct {
		a, b any
		want bool
	}{
		{v1.PodStatus{StartTime: &at}, v1.PodStatus{StartTime: &at}, true},
		{v1.PodStatus{StartTime: &at}, v1.PodStatus{StartTime: &elsewhere}, true},
		{v1.PodStatus{StartTime: &at}, v1.PodStatus{StartTime: &later}, false},
		{v1.PodStatus{PodIPs: []v1.PodIP{}}, v1.PodStatus{}, true},
		{resource.MustParse("1"), resource.MustParse("1000m"), true},
		{resource.MustParse("1"), resource.MustParse("999m"), false},
	} {
		if got := Equal(c.a, c.b); got != c.want {
			t.Errorf("%v and %v: %t, want %t", c.a, c.b, got, c.want)
		}
	}
}
