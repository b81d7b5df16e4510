// Package store writes images into containerd: into its content store, as an image of the CRI, and unpacked.
// It uses containerd's own gRPC services (content, images, leases, snapshots, diff), which listen on the socket
// of the CRI since before containerd 1.6, and changes nothing of the host's configuration.
//
// Write goes through these steps. Each may be repeated, so that Write continues where an earlier one was cut
// off, by the link or by the end of the process:
//
//	lease     all that follows belongs to a lease, which keeps it from the garbage collector
//	missing   ask for each blob; what exists is added to the lease first, so that it stays
//	upload    stream each missing blob. containerd keeps what it has got of one (its ingest) with the lease;
//	          another stream begins at that offset
//	label     index → manifest → configuration and layers: by these labels the collector follows an image
//	unpack    prepare, apply, commit: one snapshot for each layer, so that CreateContainer need not
//	record    the image's ID and names, with the label by which the CRI knows its own images
//	release   delete the lease; the image's record now keeps everything
//
// Digests and sizes are checked twice: here, where the bytes pass, and by containerd's commit.
//
// A lazy snapshotter (stargz, SOCI, Nydus) gets whole layers like any other one. CRI-O has no such services,
// and keeps its images in containers/storage, which only its own process may write: Write returns
// ErrNoContentStore. An image reaches such a host by its CRI alone: from a registry that the host can reach.
package store
