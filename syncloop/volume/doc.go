// Package volume makes a pod's volumes on its machine, keeps those that show
// API objects up to date, and takes them away after the pod's end.
//
// What a volume holds is decided purely in package render; this package asks
// for the objects, mounts, and writes. The layout is the kubelet's:
//
//	<root>/pods/<uid>/                                    0750
//	    volumes/kubernetes.io~configmap/<name>            on disk
//	    volumes/kubernetes.io~{secret,projected,downward-api}/<name>  tmpfs
//	    volumes/kubernetes.io~empty-dir/<name>            disk, or tmpfs for medium Memory
//	    plugins/kubernetes.io~empty-dir/<name>/ready      written once its ownership is set
//	    volumes/kubernetes.io~local-volume/<persistent volume>        bind mounted
//	    plugins/bowline.io~claims/<name>                  path of the machine that a claim gives the pod
//	    volume-subpaths/<volume>/<container>/<index>      subPath, bind mounted
//	    containers/<container>/                           termination logs
//	<root>/bowline/pods/<uid>                             record: this UID is ours
//
// The record is written before anything else of the pod, and outlives the pod
// directory: by it the garbage collector knows which of the machine's log
// directories and cgroups are ours to remove. A pod directory without a record
// belongs to someone else and is never touched.
package volume
