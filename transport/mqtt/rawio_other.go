//go:build !linux

package mqtt

import "net"

// rawOps returns nothing: outside Linux every read and write may block, and
// writes are left to the writer goroutine.
func rawOps(net.Conn) (read, write *rawOp) { return nil, nil }
