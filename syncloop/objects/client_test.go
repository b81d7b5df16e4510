package objects

import (
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

type watchInterface = watch.Interface

// client says of itself what the fake clientset says: that its watches know no
// initial events.
type client struct{ corev1client.CoreV1Interface }

func (client) IsWatchListSemanticsUnSupported() bool { return true }
