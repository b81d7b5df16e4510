package charts

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestColumns: kubectl get hosts shows whether each is Ready, and has AGE as the last column, like
// other objects. Its short name does not collide with a built-in one.
func TestColumns(t *testing.T) {
	data := testutil.ReadFile(t, "bowline/crds/bowline.io_hosts.yaml")
	var crd struct {
		Spec struct {
			Names    struct{ ShortNames []string }
			Versions []struct {
				AdditionalPrinterColumns []struct {
					Name     string
					Priority int // above 0: only with -o wide
				}
			}
		}
	}
	testutil.Must(t, yaml.Unmarshal(data, &crd))
	var names, wide []string
	for _, c := range crd.Spec.Versions[0].AdditionalPrinterColumns {
		if c.Priority > 0 {
			wide = append(wide, c.Name)
		} else {
			names = append(names, c.Name)
		}
	}
	if want := []string{"Endpoint", "Message"}; !slices.Equal(wide, want) {
		t.Errorf("wide columns %v, want %v", wide, want)
	}
	if want := []string{"Ready", "Node", "Link", "RTT", "Pods", "Reason", "Age"}; !slices.Equal(names, want) {
		t.Errorf("columns %v, want %v", names, want)
	}
	if want := []string{"bhost"}; !slices.Equal(crd.Spec.Names.ShortNames, want) {
		t.Errorf("short names %v, want %v", crd.Spec.Names.ShortNames, want)
	}
}
