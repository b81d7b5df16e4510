// Package linkpull pulls images for a host that reaches no registry, or not that one: this process gets them
// from the registry (package registry) and writes them through the host's link into its containerd (package
// store). Pull secrets, and what credential providers return, never reach the host.
//
// Where a host's images come from is its imagePull: "host", its runtime pulls, as on any node; "link", this
// process does; "auto", the runtime first, and this process if that fails in a way that another network may
// heal. A registry for which that has helped is asked over the link at once for a while.
//
// # Wiring
//
// Runtime has the methods of images.Runtime (syncloop/images) and goes between images.Manager and the CRI's
// client. So pull policies, back-off, parallelism and the records of who may use an image stay as they are,
// and the Manager tries credentials one after the other, as it does with the CRI. What has to be joined:
//
//   - Once for the process: a registry.Client, with registry.Roots of the configuration's registryCAFile, and a
//     Policy whose Never has the API server's addresses (that of the client's configuration, and the Service
//     "kubernetes"); and store.Slots, which bound the memory of all pulls.
//   - For each node whose Host has imagePull link or auto: a second cri.Client for the same socket, whose Dial
//     uses the link's connection for data, so that layers delay neither probes nor the CRI; a store.Store on
//     its Containerd, with the snapshotter by store.SnapshotterOf; a Puller, and a Runtime as
//     images.Config.Runtime.
//   - RuntimeConfig.Progress to the worker's report: Progress is the text for the waiting container.
//   - Hosts with CRI-O: store.ErrNoContentStore. With "auto" the runtime's own error stays; with "link" the
//     check of a host has to say that this runtime cannot.
//
// The image of Bowline's own helper takes the same way without a registry: build.Make, and Store.Write with
// build.Name as its only name and store.Memory as its source. Its pod has the pull policy Never. Releasing the
// host removes it by the CRI, like any image.
package linkpull
