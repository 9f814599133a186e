// A BLAS library whose products start a thread. It counts them, and those that do not block SIGUSR1.
#include <pthread.h>
#include <signal.h>

int smla_test_started, smla_test_open;

static void* look(void* unused) {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    ++smla_test_started;
    smla_test_open += !sigismember(&mask, SIGUSR1);
    return unused;
}

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc) {
    (void)order, (void)trans_a, (void)beta;
    pthread_t thread;
    if (pthread_create(&thread, NULL, look, NULL) == 0) pthread_join(thread, NULL);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int l = 0; l < k; ++l)
                sum += a[i * lda + l] * (trans_b == 112 ? b[j * ldb + l] : b[l * ldb + j]);
            c[i * ldc + j] = alpha * sum;
        }
}
