package provider

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
)

// failing fails the next left calls.
func failing(mu *sync.Mutex, left *int) ktesting.ReactionFunc {
	return func(ktesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if *left > 0 {
			*left--
			return true, nil, errAway
		}
		return false, nil, nil
	}
}
