package pod

import (
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
)

// Equal is equality.Semantic.DeepEqual. Most values that the node compares are identical, which reflect
// finds at a fraction of the cost.
func Equal[T any](a, b T) bool {
	return reflect.DeepEqual(a, b) || equality.Semantic.DeepEqual(a, b)
}
