package mqtt

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

var (
	errNoCertificate = errors.New("holds no certificate in PEM form")
	errHalfPair      = errors.New("tls.cert_file and tls.key_file belong together: one of them is missing")
)

// buildTLS reads the files that the settings name and returns the configuration
// of a TLS client. The error holds every fault, each with the option and the file.
func buildTLS(s *TLSSettings) (*tls.Config, error) {
	cfg := &tls.Config{
		ServerName:         s.ServerName,
		NextProtos:         s.ALPN,
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: s.InsecureSkipVerify,
		ClientSessionCache: tls.NewLRUClientSessionCache(0),
	}
	var faults []error
	switch s.MinVersion {
	case "", "1.2":
	case "1.3":
		cfg.MinVersion = tls.VersionTLS13
	default:
		faults = append(faults, fmt.Errorf("tls.min_version %q: write 1.2 or 1.3", s.MinVersion))
	}
	if s.CACertFile != "" {
		pem, err := os.ReadFile(s.CACertFile)
		if cfg.RootCAs = x509.NewCertPool(); err == nil && !cfg.RootCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s %w", s.CACertFile, errNoCertificate)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("tls.ca_cert_file: %w", err))
		}
	}
	switch {
	case s.CertFile != "" && s.KeyFile != "":
		pair, err := loadPair(s.CertFile, s.KeyFile)
		if err != nil {
			faults = append(faults, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	case s.CertFile != "" || s.KeyFile != "":
		faults = append(faults, errHalfPair)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return cfg, nil
}

// loadPair reads a client certificate and its key.
func loadPair(certFile, keyFile string) (tls.Certificate, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		err = fmt.Errorf("tls.cert_file: %w", err)
	}
	key, keyErr := os.ReadFile(keyFile)
	if keyErr != nil {
		keyErr = fmt.Errorf("tls.key_file: %w", keyErr)
	}
	if err := errors.Join(err, keyErr); err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("tls.cert_file %s with tls.key_file %s: %w", certFile, keyFile, err)
	}
	return pair, nil
}
