// Package nodecert gives a node its certificates, from the cluster's signers, and
// renews them before their end without a pause.
//
//	Client   system:node:NAME in system:nodes, kubernetes.io/kube-apiserver-client-kubelet:
//	         asked for by a bootstrap credential first, by itself afterwards; or asked
//	         for and approved by an account of the process each time (Approve)
//	Serving  what the node shows to the API server, kubernetes.io/kubelet-serving
//
// Requests, their time and the files are those of client-go's certificate manager,
// which a kubelet uses too: a certificate is renewed when 70 to 90 % of its life are
// over, and lies with its key in Directory, NAME-client-current.pem and
// NAME-serving-current.pem, readable by the process's user alone.
//
// A renewed certificate is used by requests from then on. Requests that are under way,
// watches among them, end as they would have: they hold the connection of before, which
// goes when it is idle.
package nodecert
