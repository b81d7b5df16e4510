// Package nodecert obtains a node's certificates from the cluster's signers, and rotates them
// without a pause.
//
//	Client   system:node:NAME in system:nodes, by kubernetes.io/kube-apiserver-client-kubelet:
//	         requested with a bootstrap credential at first, and with itself afterwards; or
//	         requested and approved by an account of the process each time (Approve)
//	Serving  what the node presents to the API server, by kubernetes.io/kubelet-serving
//
// Requests, their timing and the files are those of client-go's certificate manager, which a kubelet
// uses too: a certificate is renewed after 70 to 90 % of its life. It is stored with its key in
// Directory, as NAME-client-current.pem and NAME-serving-current.pem, readable only by the
// process's user.
//
// New requests use a renewed certificate. Requests in progress, including watches, are not
// interrupted: they keep their connection, which is closed when it is idle.
package nodecert
