// Package volume sets up a pod's volumes on its host, keeps those that show API objects up to date,
// and removes them after the pod's end.
//
// The pure package render computes the content of a volume; this package fetches the objects, mounts,
// and writes. The layout is the kubelet's:
//
//	<root>/pods/<uid>/                                    0750
//	    volumes/kubernetes.io~configmap/<name>            on disk
//	    volumes/kubernetes.io~{secret,projected,downward-api}/<name>  tmpfs
//	    volumes/kubernetes.io~empty-dir/<name>            on disk; tmpfs or hugetlbfs by its medium
//	    plugins/kubernetes.io~empty-dir/<name>/ready      written once its ownership is set
//	    volumes/kubernetes.io~local-volume/<persistent volume>        bind mount, or the device's file system
//	    volumes/kubernetes.io~nfs/<name or persistent volume>         NFS mount
//	    plugins/bowline.io~claims/<name>                  record of a hostPath or device given by a claim
//	    volume-subpaths/<volume>/<container>/<index>      subPath, bind mounted
//	    containers/<container>/                           termination logs
//	<root>/bowline/pods/<uid>                             record: this UID is ours
//
// The record is written before anything else of the pod, and outlives the pod directory: it tells
// the garbage collector which log directories and cgroups on the host are ours to remove. A pod
// directory without a record belongs to someone else and is never touched.
package volume
