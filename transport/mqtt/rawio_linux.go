package mqtt

import (
	"io"
	"net"
	"os"
	"syscall"
)

// rawOps returns the non-blocking reads and writes of a plain TCP connection, nil
// for any other: below TLS or websocket there are no packets.
func rawOps(nc net.Conn) (read, write *rawOp) {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil, nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, nil // closed already: the blocking calls report it
	}
	once := func(name string, sys func(fd int, p []byte) (int, error)) func(uintptr, []byte) (int, error) {
		return func(fd uintptr, p []byte) (int, error) {
			n, err := sys(int(fd), p)
			for err == syscall.EINTR {
				n, err = sys(int(fd), p)
			}
			switch {
			case err == syscall.EAGAIN:
				return 0, nil
			case err != nil:
				return 0, &net.OpError{
					Op: name, Net: "tcp", Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: os.NewSyscallError(name, err),
				}
			case n == 0 && name == "read":
				return 0, io.EOF
			}
			return n, nil
		}
	}
	return newRawOp(raw.Read, once("read", syscall.Read)), newRawOp(raw.Write, once("write", syscall.Write))
}
