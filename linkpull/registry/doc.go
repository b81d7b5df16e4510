// Package registry reads images from registries that speak the OCI distribution protocol: manifests,
// configurations and layers, with basic and token authentication. It only reads.
//
// It is a client of its own, on net/http. go-containerregistry, which the lab uses, would add Docker's CLI
// configuration, logrus and zstd to the program (about 3 MB), and containerd's client its whole core. Neither
// lets the caller choose the addresses that may be dialled, begin a layer at an offset, or bound what is read;
// most of this package is about those.
//
// An image's name comes from a pod, and what a registry answers comes from anyone who runs one. The process
// may run in a cluster, where its network reaches more than the pod may. So each connection is checked after
// the name of its host has been resolved (Policy), redirects are few and never leave TLS, and every document,
// header and wait has a limit.
//
// The client does not use HTTP/2: it would buffer 4 MiB for each layer that a slow link holds up. HTTP/1.1
// leaves them with the kernel's socket, and so with the registry.
package registry
