package mqtt

// rawOp is one kind of system call on a socket, done once and without blocking.
// It exists so that the call costs no allocation. It is not safe for concurrent
// use.
type rawOp struct {
	do   func(func(fd uintptr) bool) error // Read or Write of a syscall.RawConn
	call func(fd uintptr) bool
	p    []byte
	n    int
	err  error
}

func newRawOp(do func(func(uintptr) bool) error, sys func(fd uintptr, p []byte) (int, error)) *rawOp {
	op := &rawOp{do: do}
	op.call = func(fd uintptr) bool {
		op.n, op.err = sys(fd, op.p)
		return true // whatever came of it: never wait
	}
	return op
}

// once makes the call. 0 and nil mean that it would have had to wait.
func (op *rawOp) once(p []byte) (int, error) {
	op.p, op.n, op.err = p, 0, nil
	err := op.do(op.call)
	op.p = nil
	if err != nil {
		return 0, err
	}
	return op.n, op.err
}
